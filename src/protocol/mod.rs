//! The protocol: messages, event streams, headers and methods. Pure: bytes in, values out.
//!
//! A message is *indexed, not rebuilt*: a [`Frame`] keeps the bytes that a peer sent and the positions of the
//! parts that the proxy routes by. Where a member must change, [`splice`] changes that member and preserves
//! every other byte. Begin with [`frame`], then [`splice`].

pub mod accept;
pub mod canonical;
pub mod capability;
pub mod code;
pub mod frame;
pub mod headers;
pub mod heartbeat;
pub mod id;
pub mod input;
pub mod input_keys;
pub mod message_kind;
pub mod messages;
pub mod meta;
pub mod method;
pub mod request_head;
pub mod revision;
mod scan;
pub mod splice;
pub mod sse;
pub mod status_message;
pub mod time;
pub mod tool_result;
pub mod trace_context;

pub use capability::Capabilities;
pub use code::{ErrorObject, ErrorOrigin};
pub use frame::{Frame, FrameError, Kind, Payload};
pub use heartbeat::ProgressHeartbeat;
pub use id::RequestId;
pub use input::{InputKind, InputRequest, InputResponses};
pub use messages::MessageReader;
pub use method::{ListKind, Method};
pub use revision::{Era, Revision};
pub use time::{ClockOffset, ClockReading, Timestamp, WallTime};
pub use trace_context::TraceContext;
