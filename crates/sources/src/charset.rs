// SPDX-License-Identifier: Apache-2.0
//! Bytes of a file as UTF-8.

/// How text is in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Utf8,
    /// As its byte order mark says; without one, big-endian.
    Utf16,
    Utf16Le,
    Utf16Be,
    Latin1,
}

impl Encoding {
    /// The encoding of a name, as IANA or Java write it.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        match plain.to_ascii_lowercase().as_str() {
            "utf8" | "usascii" | "ascii" => Ok(Encoding::Utf8),
            "utf16" => Ok(Encoding::Utf16),
            "utf16le" => Ok(Encoding::Utf16Le),
            "utf16be" => Ok(Encoding::Utf16Be),
            "iso88591" | "latin1" | "l1" => Ok(Encoding::Latin1),
            _ => Err(format!("`{name}` is not supported: use UTF-8, UTF-16, UTF-16LE, UTF-16BE or ISO-8859-1")),
        }
    }
}

/// Turns the bytes of one file into UTF-8 as they come. UTF-8 itself is passed on unseen: whoever reads it looks at it.
#[derive(Debug)]
pub(crate) struct Transcoder {
    /// What was asked for; `None`: UTF-8, or what a byte order mark says.
    asked: Option<Encoding>,
    settled: Option<Encoding>,
    /// Bytes that are not a whole character, or not enough to settle the encoding.
    rest: Vec<u8>,
    /// Bytes seen before `rest`.
    seen: u64,
}

impl Transcoder {
    pub(crate) fn new(asked: Option<Encoding>) -> Self {
        Transcoder { asked, settled: None, rest: Vec::new(), seen: 0 }
    }

    /// Appends the text of `bytes` to `out`; `last`: the file ends with them.
    pub(crate) fn push(&mut self, bytes: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), String> {
        if let (Some(Encoding::Utf8), true) = (self.settled, self.rest.is_empty()) {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        self.rest.extend_from_slice(bytes);
        let encoding = match self.settled {
            Some(encoding) => encoding,
            None => {
                if self.rest.len() < 3 && !last {
                    return Ok(());
                }
                let (encoding, mark) = self.settle()?;
                self.drop_front(mark);
                self.settled = Some(encoding);
                encoding
            }
        };
        match encoding {
            Encoding::Utf8 => {
                out.append(&mut self.rest);
                Ok(())
            }
            Encoding::Latin1 => {
                for byte in self.rest.drain(..) {
                    let mut utf8 = [0; 2];
                    out.extend_from_slice(char::from(byte).encode_utf8(&mut utf8).as_bytes());
                }
                Ok(())
            }
            Encoding::Utf16Le => self.utf16(u16::from_le_bytes, last, out),
            Encoding::Utf16 | Encoding::Utf16Be => self.utf16(u16::from_be_bytes, last, out),
        }
    }

    fn drop_front(&mut self, bytes: usize) {
        self.rest.drain(..bytes);
        self.seen += bytes as u64;
    }

    /// The encoding, and the bytes of its mark.
    fn settle(&self) -> Result<(Encoding, usize), String> {
        let marked = match self.rest.as_slice() {
            [0xef, 0xbb, 0xbf, ..] => Some((Encoding::Utf8, 3)),
            [0xff, 0xfe, ..] => Some((Encoding::Utf16Le, 2)),
            [0xfe, 0xff, ..] => Some((Encoding::Utf16Be, 2)),
            _ => None,
        };
        match (self.asked, marked) {
            (None, Some(marked)) => Ok(marked),
            (None, None) => Ok((Encoding::Utf8, 0)),
            // Any byte is a character there.
            (Some(Encoding::Latin1), _) => Ok((Encoding::Latin1, 0)),
            (Some(Encoding::Utf16), Some((marked @ (Encoding::Utf16Le | Encoding::Utf16Be), mark))) => {
                Ok((marked, mark))
            }
            (Some(asked), Some((marked, mark))) if asked == marked => Ok((asked, mark)),
            (Some(asked), Some((marked, _))) => {
                Err(format!("its byte order mark says {marked:?}, and `encoding` says {asked:?}; leave `encoding` out"))
            }
            (Some(asked), None) => Ok((asked, 0)),
        }
    }

    fn utf16(&mut self, unit: fn([u8; 2]) -> u16, last: bool, out: &mut Vec<u8>) -> Result<(), String> {
        let mut at = 0;
        let mut utf8 = [0; 4];
        while let Some(pair) = self.rest.get(at..at + 2) {
            let first = unit([pair[0], pair[1]]);
            let (units, width) = match first {
                0xd800..=0xdbff => match self.rest.get(at + 2..at + 4) {
                    Some(pair) => ([first, unit([pair[0], pair[1]])], 2),
                    None => break,
                },
                _ => ([first, 0], 1),
            };
            let Some(Ok(character)) = char::decode_utf16(units.into_iter().take(width)).next() else {
                return Err(format!("it is no UTF-16 at byte {}", self.seen + at as u64));
            };
            out.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
            at += 2 * width;
        }
        self.drop_front(at);
        if last && !self.rest.is_empty() {
            return Err(format!("it ends within a character of UTF-16, at byte {}", self.seen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(asked: Option<Encoding>, bytes: &[u8], step: usize) -> Result<String, String> {
        let mut transcoder = Transcoder::new(asked);
        let mut out = Vec::new();
        for chunk in bytes.chunks(step) {
            transcoder.push(chunk, false, &mut out)?;
        }
        transcoder.push(&[], true, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn utf16(text: &str, mark: bool, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        mark.then_some(0xfeff).into_iter().chain(text.encode_utf16()).flat_map(bytes).collect()
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text_and_settles_the_encoding() {
        let text = "\"é\",𝄞\n";
        for step in [1, 2, 3, 100] {
            assert_eq!(read(None, format!("\u{feff}{text}").as_bytes(), step).unwrap(), text);
            assert_eq!(read(None, &utf16(text, true, u16::to_le_bytes), step).unwrap(), text);
            assert_eq!(read(None, &utf16(text, true, u16::to_be_bytes), step).unwrap(), text);
            assert_eq!(read(Some(Encoding::Utf16Le), &utf16(text, false, u16::to_le_bytes), step).unwrap(), text);
            assert_eq!(read(Some(Encoding::Utf16), &utf16(text, false, u16::to_be_bytes), step).unwrap(), text);
            assert_eq!(read(Some(Encoding::Latin1), b"caf\xe9", step).unwrap(), "café");
        }
        assert_eq!(read(None, "a\u{feff}b".as_bytes(), 1).unwrap(), "a\u{feff}b", "only at the beginning");
        assert_eq!(read(None, b"", 1).unwrap(), "");
    }

    #[test]
    fn what_is_no_utf_16_is_an_error_with_its_place() {
        let mut bytes = utf16("ab", true, u16::to_le_bytes);
        bytes.push(b'x');
        assert!(read(None, &bytes, 100).unwrap_err().contains("byte 6"));
        let lone = [0xff, 0xfe, 0x00, 0xdc];
        assert!(read(None, &lone, 1).unwrap_err().contains("byte 2"));
    }

    #[test]
    fn a_mark_that_contradicts_the_option_is_an_error() {
        let refused = read(Some(Encoding::Utf8), &utf16("a", true, u16::to_le_bytes), 100).unwrap_err();
        assert!(refused.contains("byte order mark"), "{refused}");
        assert!(Encoding::named("EBCDIC").is_err());
        assert_eq!(Encoding::named("iso-8859-1"), Ok(Encoding::Latin1));
    }
}
