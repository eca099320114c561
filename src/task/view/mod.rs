//! Writes a task record as messages for clients.
//!
//! A record has three views: the task of the tasks extension ([`extension`], for 2026-07-28), the
//! experimental task of 2025-11-25 ([`experimental`]), and the [`ticket`] for clients without task support.
//! They differ in more than names: in the first, the result is in the task; in the second, the result is
//! fetched by a separate request, and a tool error makes the task `failed`; in the third, the result is that
//! of another tool.

pub mod experimental;
pub mod extension;
pub mod ticket;

/// Writes a JSON object into one buffer.
struct ObjectWriter(Vec<u8>);

// === impl ObjectWriter ===

impl ObjectWriter {
    /// Begins an object in a buffer of this capacity, in bytes.
    fn with_capacity(bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes);
        out.push(b'{');
        Self(out)
    }

    /// Writes a member whose value is a string.
    fn write_string(&mut self, key: &str, value: &str) {
        self.write_key(key);
        self.write_quoted(value);
    }

    /// Writes a member whose value is a number.
    fn write_number(&mut self, key: &str, value: u128) {
        self.write_key(key);
        self.write_raw(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes the key of the next member, which must not need escaping.
    fn write_key(&mut self, key: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// Writes a string as JSON.
    fn write_quoted(&mut self, text: &str) {
        serde_json::to_writer(&mut self.0, text).expect("a string is written to memory");
    }

    /// Writes raw JSON.
    fn write_raw(&mut self, json: &[u8]) {
        self.0.extend_from_slice(json);
    }

    /// Ends the object, and returns its bytes.
    fn finish(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}
