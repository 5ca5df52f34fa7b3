// SPDX-License-Identifier: Apache-2.0
//! The framing of Hudi's log files: which blocks a file holds and where their content lies.
//!
//! A block is `#HUDI#`, its length, the format version, its type, a header map, the content with its length, a
//! footer map, and the block's length again, counted from the magic. A block whose two lengths disagree was torn by
//! a writer that died; the next magic after it starts the next block, as Hudi's own readers do it.

use std::collections::HashMap;

use bytes::Bytes;

use crate::error::{Error, Result};

const MAGIC: &[u8] = b"#HUDI#";
/// The only format version that tables of version 6 and later have.
const FORMAT_VERSION: u32 = 1;
/// Bytes of a length.
const LENGTH: usize = 8;

/// `HeaderMetadataType.INSTANT_TIME`.
pub(crate) const INSTANT_TIME: u32 = 0;
/// `HeaderMetadataType.TARGET_INSTANT_TIME`.
const TARGET_INSTANT_TIME: u32 = 1;
/// `HeaderMetadataType.SCHEMA`.
pub(crate) const SCHEMA: u32 = 2;
/// `HeaderMetadataType.COMPACTED_BLOCK_TIMES`.
const COMPACTED_BLOCK_TIMES: u32 = 4;
/// `HeaderMetadataType.IS_PARTIAL`.
const IS_PARTIAL: u32 = 7;

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// A rollback of an earlier block.
    Command,
    /// Keys to delete.
    Delete,
    /// Rows in Avro.
    Avro,
    /// An HFile.
    HFile,
    /// Rows in a Parquet file.
    Parquet,
    /// Anything else, by its number.
    Other(u32),
}

/// One intact block.
#[derive(Debug, Clone)]
pub(crate) struct LogBlock {
    /// What it holds.
    pub(crate) kind: BlockKind,
    /// Its content.
    pub(crate) content: Bytes,
    header: HashMap<u32, String>,
}

impl LogBlock {
    /// Whether it is a delete block without a key.
    pub(crate) fn deletes_nothing(&self) -> bool {
        // Version, length, then an Avro record that is one array; an empty array is a single zero.
        self.kind == BlockKind::Delete && matches!(self.content.as_ref(), [0, 0, 0, _, 0, 0, 0, 1, 0])
    }

    /// The instant that wrote the block.
    pub(crate) fn instant(&self) -> Option<&str> {
        self.header.get(&INSTANT_TIME).map(String::as_str)
    }

    /// The instant that a command block rolls back.
    pub(crate) fn target_instant(&self) -> Option<&str> {
        self.header.get(&TARGET_INSTANT_TIME).map(String::as_str)
    }

    /// Instants whose blocks a log compaction put together in this one.
    pub(crate) fn compacted_instants(&self) -> impl Iterator<Item = &str> {
        let listed = self.header.get(&COMPACTED_BLOCK_TIMES).map_or("", String::as_str);
        listed.split(',').map(str::trim).filter(|instant| !instant.is_empty())
    }

    /// Whether its rows hold changed columns only.
    pub(crate) fn is_partial(&self) -> bool {
        self.header.get(&IS_PARTIAL).is_some_and(|flag| flag.eq_ignore_ascii_case("true"))
    }

    /// The Avro schema of its records.
    pub(crate) fn schema(&self) -> Option<&str> {
        self.header.get(&SCHEMA).map(String::as_str)
    }
}

/// What a torn block in a log file means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Torn {
    /// Nothing: on timeline layout 1 an instant may append to the file of another, and tear its block where it dies.
    PassedOver,
    /// Damage: on layout 2 a file is of one instant, and is looked at only once that completed. It cannot be empty either.
    Refused,
}

impl Torn {
    /// What it means on a table of this timeline layout.
    pub fn of_layout(layout: u32) -> Self {
        if layout == 1 { Torn::PassedOver } else { Torn::Refused }
    }
}

/// A block as Hudi writes it: `header` by the numbers of `HeaderMetadataType`, no footer.
pub(crate) fn frame_block(kind: u32, header: &[(u32, &str)], content: &[u8]) -> Vec<u8> {
    let header_bytes: usize = header.iter().map(|(_, value)| 8 + value.len()).sum();
    // Format version, type, both maps' counts, then the content with its length, and the length at the end.
    let length = 4 * 4 + header_bytes + LENGTH + content.len() + LENGTH;
    let mut out = Vec::with_capacity(MAGIC.len() + LENGTH + length);
    out.extend(MAGIC);
    out.extend((length as u64).to_be_bytes());
    out.extend(FORMAT_VERSION.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((header.len() as u32).to_be_bytes());
    for (key, value) in header {
        out.extend(key.to_be_bytes());
        out.extend((value.len() as u32).to_be_bytes());
        out.extend(value.as_bytes());
    }
    out.extend((content.len() as u64).to_be_bytes());
    out.extend(content);
    out.extend(0u32.to_be_bytes());
    out.extend(((length + MAGIC.len()) as u64).to_be_bytes());
    out
}

/// The blocks of a log file, in order; `file` is for messages.
pub(crate) fn read_blocks(file: &str, bytes: &Bytes, torn: Torn) -> Result<Vec<LogBlock>> {
    if bytes.is_empty() && torn == Torn::Refused {
        return Err(Error::corrupt(file, "its instant completed, but it is empty"));
    }
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = block_end(bytes, at) {
            let body = bytes.slice(at + MAGIC.len() + LENGTH..end - LENGTH);
            blocks.push(read_block(body).map_err(|detail| Error::corrupt(file, format!("block at {at}: {detail}")))?);
            at = end;
            continue;
        }
        if torn == Torn::Refused {
            let detail = format!("its instant completed, but the block at byte {at} of {} is torn", bytes.len());
            return Err(Error::corrupt(file, detail));
        }
        match next_magic(bytes, at + 1) {
            Some(next) => at = next,
            None => break,
        }
    }
    Ok(blocks)
}

/// Where the block that starts at `at` ends; `None` when no intact block starts there.
fn block_end(bytes: &Bytes, at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?.strip_prefix(MAGIC)?;
    let length = usize::try_from(u64::from_be_bytes(rest.get(..LENGTH)?.try_into().ok()?)).ok()?;
    let end = at.checked_add(MAGIC.len() + LENGTH)?.checked_add(length)?;
    let trailer = bytes.get(end.checked_sub(LENGTH)?..end)?;
    let counted = u64::from_be_bytes(trailer.try_into().ok()?);
    let expected = length.checked_add(MAGIC.len())?;
    (length >= LENGTH && counted == expected as u64).then_some(end)
}

fn next_magic(bytes: &Bytes, from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(MAGIC.len()).position(|window| window == MAGIC).map(|found| from + found)
}

fn read_block(body: Bytes) -> std::result::Result<LogBlock, &'static str> {
    let mut input = Input { bytes: body, at: 0 };
    if input.number()? != FORMAT_VERSION {
        return Err("unknown format version");
    }
    let kind = match input.number()? {
        0 => BlockKind::Command,
        1 => BlockKind::Delete,
        3 => BlockKind::Avro,
        4 => BlockKind::HFile,
        5 => BlockKind::Parquet,
        other => BlockKind::Other(other),
    };
    let entries = input.number()?;
    let mut header = HashMap::new();
    for _ in 0..entries {
        let key = input.number()?;
        let length = input.number()? as usize;
        header.insert(key, String::from_utf8_lossy(&input.take(length)?).into_owned());
    }
    let length = u64::from_be_bytes(input.take(LENGTH)?.as_ref().try_into().map_err(|_| "no content length")?);
    let content = input.take(usize::try_from(length).map_err(|_| "content too long")?)?;
    Ok(LogBlock { kind, content, header })
}

struct Input {
    bytes: Bytes,
    at: usize,
}

impl Input {
    fn take(&mut self, length: usize) -> std::result::Result<Bytes, &'static str> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or("shorter than it says")?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> std::result::Result<u32, &'static str> {
        let taken = self.take(4)?;
        Ok(u32::from_be_bytes(taken.as_ref().try_into().map_err(|_| "shorter than it says")?))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn block(kind: u32, instant: &str, content: &[u8]) -> Vec<u8> {
        block_with(kind, &[(INSTANT_TIME, instant)], content)
    }

    /// A block as Hudi writes it.
    pub(crate) fn block_with(kind: u32, header: &[(u32, &str)], content: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(FORMAT_VERSION.to_be_bytes());
        body.extend(kind.to_be_bytes());
        body.extend((header.len() as u32).to_be_bytes());
        for (key, value) in header {
            body.extend(key.to_be_bytes());
            body.extend((value.len() as u32).to_be_bytes());
            body.extend(value.as_bytes());
        }
        body.extend((content.len() as u64).to_be_bytes());
        body.extend(content);
        body.extend(0u32.to_be_bytes());
        let length = (body.len() + LENGTH) as u64;
        let mut out = MAGIC.to_vec();
        out.extend(length.to_be_bytes());
        out.extend(body);
        out.extend((length + MAGIC.len() as u64).to_be_bytes());
        out
    }

    #[test]
    fn a_block_is_framed_as_hudi_does_it() {
        let header = [(INSTANT_TIME, "1"), (SCHEMA, "{}")];
        for content in [b"".as_slice(), b"abc"] {
            assert_eq!(frame_block(3, &header, content), block_with(3, &header, content));
        }
    }

    #[test]
    fn blocks_come_back_in_order() {
        let bytes = Bytes::from([block(4, "1", b"abc"), block(1, "2", b"")].concat());
        let blocks = read_blocks("f", &bytes, Torn::PassedOver).unwrap();
        let seen: Vec<_> = blocks.iter().map(|b| (b.kind, b.instant().unwrap(), b.content.as_ref())).collect();
        assert_eq!(seen, [(BlockKind::HFile, "1", b"abc".as_slice()), (BlockKind::Delete, "2", b"".as_slice())]);
    }

    #[test]
    fn a_torn_block_is_passed_over() {
        let whole = block(4, "2", b"xyz");
        for cut in 1..whole.len() {
            let torn = [block(4, "1", b"abc"), whole[..cut].to_vec(), block(4, "3", b"def")].concat();
            let blocks = read_blocks("f", &Bytes::from(torn), Torn::PassedOver).unwrap();
            let instants: Vec<_> = blocks.iter().map(|b| b.instant().unwrap()).collect();
            assert_eq!(instants, ["1", "3"], "cut at {cut}");
        }
    }

    #[test]
    fn a_lying_inner_length_is_corrupt_and_names_the_file() {
        let mut bytes = block(4, "1", b"abc");
        let at = bytes.len() - LENGTH - 4 - 3 - LENGTH;
        bytes[at..at + LENGTH].copy_from_slice(&99u64.to_be_bytes());
        assert!(read_blocks("x.log", &Bytes::from(bytes), Torn::PassedOver).unwrap_err().to_string().contains("x.log"));
    }

    #[test]
    fn a_file_of_a_completed_instant_has_no_torn_block() {
        let whole = block(5, "1", b"rows");
        assert_eq!(read_blocks("f", &Bytes::from(whole.clone()), Torn::Refused).unwrap().len(), 1);
        for cut in [0, 1, 7, whole.len() - 1] {
            let torn = Bytes::from(whole[..cut].to_vec());
            let refused = read_blocks("x.log", &torn, Torn::Refused).unwrap_err().to_string();
            assert!(refused.contains("x.log"), "cut at {cut}");
        }
        let two = Bytes::from([whole.clone(), whole[..9].to_vec()].concat());
        assert!(read_blocks("x.log", &two, Torn::Refused).is_err());
    }
}
