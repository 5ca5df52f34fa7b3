// SPDX-License-Identifier: Apache-2.0
//! What goes along with a call: the W3C headers `traceparent` and `baggage`.

use std::fmt;

/// Id of a trace; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// Id of a span; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl TraceId {
    /// The id of these bits; `None` for zero, which names no trace.
    pub fn new(bits: u128) -> Option<Self> {
        (bits != 0).then_some(TraceId(bits))
    }

    /// Big endian, as it travels.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    pub(crate) fn bits(self) -> u128 {
        self.0
    }
}

impl SpanId {
    /// The id of these bits; `None` for zero, which names no span.
    pub fn new(bits: u64) -> Option<Self> {
        (bits != 0).then_some(SpanId(bits))
    }

    /// Big endian, as it travels.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A place in a trace: what a `traceparent` header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether the trace is kept; one that is not is carried on all the same.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent` header; `None` when it is none, which begins a new trace and is no error.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2)?;
        // A later version may have more parts, and must begin with these.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace = TraceId::new(hex(trace, 32)?)?;
        let span = SpanId::new(u64::try_from(hex(span, 16)?).ok()?)?;
        Some(TraceContext { trace, span, sampled: hex(flags, 2)? & 1 == 1 })
    }

    /// The `traceparent` header.
    pub fn to_header(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// Lower-case hexadecimal digits, exactly so many.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (plain && text.len() == digits).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Longest value that is taken over from a header: log lines repeat it.
const LONGEST_VALUE: usize = 256;

/// Which batch a call is about: what a `baggage` header says of it. Entries of others are not carried on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baggage {
    /// The pipeline.
    pub pipeline: Option<String>,
    /// The batch.
    pub batch: Option<String>,
    /// The instant on the target.
    pub instant: Option<String>,
    /// The source that is read.
    pub source: Option<String>,
}

impl Baggage {
    /// Names of the entries, which are those of the fields of spans.
    pub const KEYS: [&'static str; 4] = ["pipeline", "batch", "instant", "source"];

    /// An entry by its name.
    pub fn get(&self, key: &str) -> Option<&str> {
        match key {
            "pipeline" => self.pipeline.as_deref(),
            "batch" => self.batch.as_deref(),
            "instant" => self.instant.as_deref(),
            "source" => self.source.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: String) {
        match key {
            "pipeline" => self.pipeline = Some(value),
            "batch" => self.batch = Some(value),
            "instant" => self.instant = Some(value),
            "source" => self.source = Some(value),
            _ => {}
        }
    }

    /// Reads a header. What cannot be read is left out.
    pub fn parse(header: &str) -> Self {
        let mut baggage = Baggage::default();
        for entry in header.split(',') {
            // Properties may follow a value.
            let entry = entry.split(';').next().unwrap_or_default();
            let Some((key, value)) = entry.split_once('=') else { continue };
            if let Some(value) = percent_decode(value.trim()).filter(|value| value.len() <= LONGEST_VALUE) {
                baggage.set(key.trim(), value);
            }
        }
        baggage
    }

    /// The header; `None` when it would say nothing.
    pub fn to_header(&self) -> Option<String> {
        let entries = Self::KEYS.iter().filter_map(|key| Some(format!("{key}={}", encode(self.get(key)?))));
        let entries: Vec<String> = entries.collect();
        (!entries.is_empty()).then(|| entries.join(","))
    }
}

fn encode(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'/' | b':' => text.push(byte as char),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

/// A percent-encoded text; `None` when it is none.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            plain => bytes.push(plain),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_the_same() {
        let context = TraceContext::parse(HEADER).unwrap();
        assert_eq!(context.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span.to_bytes(), [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(context.sampled);
        assert_eq!(context.to_header(), HEADER);
        let unsampled = TraceContext { sampled: false, ..context };
        assert_eq!(TraceContext::parse(&unsampled.to_header()), Some(unsampled));
    }

    #[test]
    fn what_is_no_traceparent_is_none_and_a_later_version_is_read_as_far_as_it_is_known() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-what-ever";
        assert_eq!(TraceContext::parse(later), TraceContext::parse(HEADER));
    }

    #[test]
    fn baggage_carries_the_batch_and_nothing_of_others() {
        let baggage = Baggage {
            pipeline: Some("a b,c=ü".to_string()),
            batch: Some("p/r".to_string()),
            instant: Some("20250101000000001".to_string()),
            source: Some("orders".to_string()),
        };
        let header = baggage.to_header().unwrap();
        assert!(header.is_ascii() && header.contains("batch=p/r"), "{header}");
        assert_eq!(Baggage::parse(&header), baggage);
        let foreign = Baggage::parse("user=me, pipeline = p ;x=1,instant=%zz,batch");
        assert_eq!(foreign, Baggage { pipeline: Some("p".to_string()), ..Baggage::default() });
        assert_eq!(Baggage::parse(&format!("batch={}", "x".repeat(257))), Baggage::default());
        assert_eq!(Baggage::default().to_header(), None);
    }
}
