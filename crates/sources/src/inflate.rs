// SPDX-License-Identifier: Apache-2.0
//! Compressed files: what they are is told by their first bytes, and their names must agree.

use std::io::Write;

use zstd::stream::raw::{InBuffer, Operation, OutBuffer};

/// First bytes that tell every compression apart.
const MAGIC: usize = 10;
/// Bytes that are decompressed at once.
const STEP: usize = 64 << 10;

/// Decompresses one file as its bytes come.
pub(crate) struct Inflate {
    named: Option<Compression>,
    head: Vec<u8>,
    state: State,
}

enum State {
    Unsettled,
    Plain,
    Gzip(Box<flate2::write::MultiGzDecoder<Vec<u8>>>),
    Zstd { decoder: zstd::stream::raw::Decoder<'static>, open: bool },
    Bzip2 { decoder: bzip2::Decompress, open: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    Gzip,
    Zstd,
    Bzip2,
}

impl Compression {
    fn of_name(path: &str) -> Option<Self> {
        let lower = path.to_ascii_lowercase();
        [(".gz", Compression::Gzip), (".zst", Compression::Zstd), (".bz2", Compression::Bzip2)]
            .into_iter()
            .find_map(|(end, compression)| lower.ends_with(end).then_some(compression))
    }

    /// None of these bytes begins a text.
    fn of_magic(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => Some(Compression::Bzip2),
            // A stream without a block.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => Some(Compression::Bzip2),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "Zstandard",
            Compression::Bzip2 => "bzip2",
        }
    }
}

impl Inflate {
    /// For the file at `path`.
    pub(crate) fn new(path: &str) -> Self {
        Inflate { named: Compression::of_name(path), head: Vec::new(), state: State::Unsettled }
    }

    /// Whether bytes may become many more.
    pub(crate) fn expands(&self) -> bool {
        !matches!(self.state, State::Plain)
    }

    /// Appends the content of `bytes` to `out`; `last`: the file ends with them.
    pub(crate) fn push(&mut self, bytes: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), String> {
        if !matches!(self.state, State::Unsettled) {
            self.inflate(bytes, out)?;
            return if last { self.finish(out) } else { Ok(()) };
        }
        self.head.extend_from_slice(bytes);
        if self.head.len() < MAGIC && !last {
            return Ok(());
        }
        let head = std::mem::take(&mut self.head);
        self.state = self.settle(&head)?;
        self.inflate(&head, out)?;
        if last { self.finish(out) } else { Ok(()) }
    }

    fn settle(&self, head: &[u8]) -> Result<State, String> {
        let found = Compression::of_magic(head);
        if let Some(named) = self.named.filter(|named| found != Some(*named) && !head.is_empty()) {
            let is = found.map_or("not compressed so", Compression::name);
            return Err(format!("its name says {}, and it is {is}", named.name()));
        }
        Ok(match found {
            None => State::Plain,
            Some(Compression::Gzip) => State::Gzip(Box::new(flate2::write::MultiGzDecoder::new(Vec::new()))),
            Some(Compression::Zstd) => {
                let decoder = zstd::stream::raw::Decoder::new().map_err(|e| e.to_string())?;
                State::Zstd { decoder, open: true }
            }
            Some(Compression::Bzip2) => State::Bzip2 { decoder: bzip2::Decompress::new(false), open: true },
        })
    }

    fn inflate(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.state {
            State::Unsettled => {}
            State::Plain => out.extend_from_slice(bytes),
            State::Gzip(decoder) => {
                decoder.write_all(bytes).map_err(|e| format!("it is no gzip: {e}"))?;
                out.append(decoder.get_mut());
            }
            State::Zstd { decoder, open } => unzstd(decoder, open, bytes, out)?,
            State::Bzip2 { decoder, open } => unbzip2(decoder, open, bytes, out)?,
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let open = match &mut self.state {
            State::Unsettled | State::Plain => false,
            State::Gzip(decoder) => {
                decoder.try_finish().map_err(|_| cut())?;
                out.append(decoder.get_mut());
                false
            }
            State::Zstd { open, .. } | State::Bzip2 { open, .. } => *open,
        };
        if open { Err(cut()) } else { Ok(()) }
    }
}

fn cut() -> String {
    "it ends within its compressed data: it was not written to its end, or cut".to_string()
}

fn unzstd(
    decoder: &mut zstd::stream::raw::Decoder<'static>,
    open: &mut bool,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut input = InBuffer::around(bytes);
    let mut space = vec![0; STEP];
    loop {
        let mut output = OutBuffer::around(&mut space[..]);
        let before = input.pos();
        let left = decoder.run(&mut input, &mut output).map_err(|e| format!("it is no Zstandard: {e}"))?;
        let made = output.pos();
        out.extend_from_slice(&space[..made]);
        if made > 0 || input.pos() > before {
            // A frame that is over leaves nothing to expect; the next one begins by itself.
            *open = left != 0;
        }
        if input.pos() == bytes.len() && made < STEP {
            return Ok(());
        }
    }
}

fn unbzip2(decoder: &mut bzip2::Decompress, open: &mut bool, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut input = bytes;
    let mut space = vec![0; STEP];
    loop {
        if !*open {
            if input.is_empty() {
                return Ok(());
            }
            // Streams follow one another where several processors compressed.
            *decoder = bzip2::Decompress::new(false);
            *open = true;
        }
        let (before_in, before_out) = (decoder.total_in(), decoder.total_out());
        let status = decoder.decompress(input, &mut space).map_err(|e| format!("it is no bzip2: {e}"))?;
        let made = (decoder.total_out() - before_out) as usize;
        input = &input[(decoder.total_in() - before_in) as usize..];
        out.extend_from_slice(&space[..made]);
        if status == bzip2::Status::StreamEnd {
            *open = false;
        } else if input.is_empty() && made < STEP {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn text() -> Vec<u8> {
        (0..20_000).flat_map(|n| format!("{n},some text that repeats\n").into_bytes()).collect()
    }

    fn gz(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn bz2(text: &[u8]) -> Vec<u8> {
        let mut compressed = Vec::new();
        bzip2::read::BzEncoder::new(text, bzip2::Compression::fast()).read_to_end(&mut compressed).unwrap();
        compressed
    }

    fn read(path: &str, bytes: &[u8], step: usize) -> Result<Vec<u8>, String> {
        let mut inflate = Inflate::new(path);
        let mut out = Vec::new();
        for chunk in bytes.chunks(step) {
            inflate.push(chunk, false, &mut out)?;
        }
        inflate.push(&[], true, &mut out)?;
        Ok(out)
    }

    #[test]
    fn each_compression_gives_back_the_text_however_it_is_cut() {
        let zstd = zstd::encode_all(text().as_slice(), 1).unwrap();
        for (path, bytes) in [("a.csv.gz", gz(&text())), ("a.csv.zst", zstd), ("a.csv.bz2", bz2(&text()))] {
            for step in [7, 1000, 1 << 20] {
                assert_eq!(read(path, &bytes, step).unwrap(), text(), "{path}, {step}");
            }
            assert_eq!(read("without-a-name", &bytes, 100).unwrap(), text(), "{path}");
        }
        assert_eq!(read("a.csv", b"a,b", 1).unwrap(), b"a,b");
        assert_eq!(read("a.csv.gz", b"", 1).unwrap(), b"", "nothing at all was written yet");
    }

    #[test]
    fn several_streams_in_one_file_are_one_text() {
        let twice = [text(), text()].concat();
        let zstd = zstd::encode_all(text().as_slice(), 1).unwrap();
        for (path, bytes) in [("a.gz", gz(&text())), ("a.zst", zstd), ("a.bz2", bz2(&text()))] {
            assert_eq!(read(path, &[bytes.clone(), bytes].concat(), 999).unwrap(), twice, "{path}");
        }
    }

    #[test]
    fn a_cut_file_is_an_error_and_no_short_file() {
        let zstd = zstd::encode_all(text().as_slice(), 1).unwrap();
        for (path, bytes) in [("a.gz", gz(&text())), ("a.zst", zstd), ("a.bz2", bz2(&text()))] {
            for cut in [bytes.len() - 1, bytes.len() / 2, 12] {
                let refused = read(path, &bytes[..cut], 1000).unwrap_err();
                assert!(refused.contains("ends within"), "{path}, {cut}: {refused}");
            }
        }
    }

    #[test]
    fn a_name_that_contradicts_the_content_is_an_error() {
        let refused = read("a.csv.gz", b"a,b\n1,2\n3,4\n", 100).unwrap_err();
        assert!(refused.contains("its name says gzip"), "{refused}");
        let refused = read("a.csv.zst", &gz(&text()), 100).unwrap_err();
        assert!(refused.contains("Zstandard") && refused.contains("gzip"), "{refused}");
    }
}
