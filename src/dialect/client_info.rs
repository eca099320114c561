//! Who a client says it is: `clientInfo`.

use crate::protocol::splice::JsonObject;
use bytes::Bytes;

/// What a client says of itself (`Implementation`), raw JSON in an allocation of its own. Empty where it says nothing,
/// or nothing that a server would take for that. Sessions with servers over HTTP are opened in its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientInfo(Bytes);

/// The object is larger than what is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes are more than the {LARGEST} that are taken; say less")]
pub struct ClientInfoTooLarge {
    length: usize,
}

/// The most that a client may say of itself, in bytes. It may have icons in it, and is kept for as long as the sessions
/// that are opened with it.
pub const LARGEST: usize = 64 << 10;

// === impl ClientInfo ===

impl ClientInfo {
    /// Reads a client's `clientInfo`. One without a name and a version, which are required of it (2025-11-25,
    /// *Implementation*), is as good as none: a server would refuse the handshake.
    ///
    /// # Errors
    /// [`ClientInfoTooLarge`]
    pub fn read(raw: &Bytes) -> Result<Self, ClientInfoTooLarge> {
        if raw.len() > LARGEST {
            return Err(ClientInfoTooLarge { length: raw.len() });
        }
        let says_who =
            |info: &JsonObject| ["name", "version"].iter().all(|member| info.string(member).is_some());
        let is_one = JsonObject::read(raw).is_ok_and(|info| says_who(&info));
        // It outlives the request, which a slice of it would keep.
        Ok(if is_one { Self(Bytes::copy_from_slice(raw)) } else { Self::default() })
    }

    /// As it was said, unless nothing was.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        (!self.0.is_empty()).then_some(&self.0)
    }

    /// Bytes that keeping it takes.
    pub fn retained_bytes(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_as_it_was_said_and_without_a_name_or_version_not_at_all() {
        let read = |text: &'static str| {
            ClientInfo::read(&Bytes::from_static(text.as_bytes())).expect("not too large")
        };
        let said = r#"{ "version":"1.0", "name":"c\u0061", "icons":[1e400] }"#;
        assert_eq!(read(said).as_bytes().expect("it says who"), said);
        for nothing in ["{}", r#"{"name":"c"}"#, r#"{"version":"1","name":7}"#, "null", "[]", r#""c""#] {
            assert_eq!(read(nothing), ClientInfo::default(), "{nothing}");
        }
        let long = format!(r#"{{"name":"{}","version":"1"}}"#, "x".repeat(LARGEST));
        let refused = ClientInfo::read(&long.into()).expect_err("it is too large");
        assert_eq!(refused.to_string(), "65561 bytes are more than the 65536 that are taken; say less");
    }
}
