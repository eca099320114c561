//! The implementation info of a client: `clientInfo`.

use crate::protocol::splice::JsonObject;
use bytes::Bytes;

/// A client's `clientInfo` (`Implementation`) as raw JSON, in an allocation of its own; empty if the client
/// sent none or an invalid one. The proxy opens sessions with HTTP servers under this info.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientInfo(Bytes);

/// Error: a client's `clientInfo` is larger than [`LARGEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes exceed the limit of {LARGEST}; send less")]
pub struct ClientInfoTooLarge {
    length: usize,
}

/// The maximum size of `clientInfo`, in bytes. The object may contain icons, and is kept as long as the
/// sessions that are opened with it.
pub const LARGEST: usize = 64 << 10;

// === impl ClientInfo ===

impl ClientInfo {
    /// Reads a client's `clientInfo`. An object without a name and a version, which are required (2025-11-25,
    /// *Implementation*), is treated as absent: a server would refuse the handshake.
    ///
    /// # Errors
    /// [`ClientInfoTooLarge`] if the object is larger than [`LARGEST`].
    pub fn read(raw: &Bytes) -> Result<Self, ClientInfoTooLarge> {
        if raw.len() > LARGEST {
            return Err(ClientInfoTooLarge { length: raw.len() });
        }
        let has_name_and_version =
            |info: &JsonObject| ["name", "version"].iter().all(|member| info.string(member).is_some());
        let is_valid = JsonObject::read(raw).is_ok_and(|info| has_name_and_version(&info));
        // The info is copied, because a slice would keep the whole request alive.
        Ok(if is_valid { Self(Bytes::copy_from_slice(raw)) } else { Self::default() })
    }

    /// Returns the raw object as the client sent it; `None` if it was absent or invalid.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        (!self.0.is_empty()).then_some(&self.0)
    }

    /// Returns the memory that the info keeps alive, in bytes.
    pub fn retained_bytes(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_info_is_preserved_and_ignored_without_a_name_or_version() {
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
        assert_eq!(refused.to_string(), "65561 bytes exceed the limit of 65536; send less");
    }
}
