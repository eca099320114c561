//! A record as clients see it.
//!
//! One record has three views: that of the tasks extension ([`extension`], for 2026-07-28), that of the
//! experimental tasks of 2025-11-25 ([`experimental`]), and that of clients without task support, whose model
//! holds a [`ticket`]. They differ in more than names. In the first the result is in the task; in the second
//! it is fetched by a separate request, and a tool error makes the task a failed one; in the third it is the
//! result of another tool.

pub mod experimental;
pub mod extension;
pub mod ticket;

/// Writes a JSON object into one buffer.
struct ObjectWriter(Vec<u8>);

// === impl ObjectWriter ===

impl ObjectWriter {
    fn with_capacity(bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes);
        out.push(b'{');
        Self(out)
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quoted(value);
    }

    fn number(&mut self, key: &str, value: u128) {
        self.key(key);
        self.raw(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes the key of the next member. All keys here need no escaping.
    fn key(&mut self, key: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn quoted(&mut self, text: &str) {
        serde_json::to_writer(&mut self.0, text).expect("a string is written to memory");
    }

    fn raw(&mut self, json: &[u8]) {
        self.0.extend_from_slice(json);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}
