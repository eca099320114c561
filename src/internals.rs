//! The one door for tests and benches. No part of what this crate promises: it is opened for them,
//! item by item, so that the compiler sees whatever else nobody uses.
//!
//! A test that needs more adds its line to the folder it needs it from.

pub mod app {
    pub use crate::app::{Error, Running, start, start_before, start_on, start_with};
}

pub mod bridge {
    pub use crate::bridge::{Action, Catalogue, Exchange};

    pub mod elicit {
        pub use crate::bridge::elicit::check_answer;
    }

    pub mod exchange {
        pub use crate::bridge::exchange::{Ask, Deadlines, Manner, Phase};
    }

    pub mod offer {
        pub use crate::bridge::offer::{Handshake, call, handshake, tools};
    }

    pub mod relay {
        pub use crate::bridge::relay::{Action, Loss, Phase, Relay, Verdict};
    }

    pub mod resume {
        pub use crate::bridge::resume::{Binding, Keyring, Resumes, State, Unusable};
    }
}

pub mod admin {
    pub use crate::admin::{Bound, Changed, Config};
}

pub mod config {
    pub use crate::config::{
        Config, Environment, LogFormat, Store, StoreKey, check, check_in, load, load_with, parse, schema,
    };
}

pub mod dialect {
    pub use crate::dialect::{Call, Caller, ClientInfo, Credentials, Principal, PrincipalKey, Response};

    pub mod legacy {
        pub use crate::dialect::legacy::{Anchor, Answers, Message, Post};
    }

    pub mod modern {
        pub use crate::dialect::modern::{Read, notice, read, request};
    }

    pub mod raise {
        pub use crate::dialect::raise::{error, request, response, result};
    }
}

pub mod front {
    pub use crate::front::{Bound, Config, Error, Health, Keys, Limits, Timeouts, TlsPaths, serve};
}

pub mod policy {
    pub use crate::policy::{
        Access, ClientMatch, Defer, Held, HolderSign, LegacyTasks, Mode, Pattern, PrincipalSource, Questions,
        Quotas, Resume, Route, SHORTEST_RETENTION, Silence, TicketHolder, Tickets, Tokens, Unsolicited,
    };
}

pub mod protocol {
    pub use crate::protocol::{
        Capabilities, ErrorObject, Frame, FrameError, Heartbeat, Id, InputRequest, Kind, List, Messages,
        Method, Payload, Timestamp, TraceContext, meta,
    };

    pub mod canonical {
        pub use crate::protocol::canonical::value;
    }

    pub mod frame {
        pub use crate::protocol::frame::{brackets, on_one_line};
    }

    pub mod glance {
        pub use crate::protocol::glance::{Gist, Glance};
    }

    pub mod headers {
        pub use crate::protocol::headers::{
            Malformed, Mismatch, ParamHeader, check_params, decode, encode, param_headers, read,
        };
    }

    pub mod splice {
        pub use crate::protocol::splice::{Edit, Object, Patch};
    }

    pub mod sse {
        pub use crate::protocol::sse::{
            Cutter, Decoder, Editor, EventTooLarge, Minter, Numbered, Sieve, SseEvent, Watch,
        };
    }

    pub mod tool_result {
        pub use crate::protocol::tool_result::{is_error, words};
    }

    pub mod status_message {
        pub use crate::protocol::status_message::LONGEST;
    }
}

pub mod proxy {
    pub use crate::proxy::{
        AccessSummary, Anchor, AnchorSeal, Cancelled, Commit, Endpoint, Item, Items, Ledger, Left, NoRoom,
        Operators, Passage, Passed, Passing, Reply, Service, Switchboard,
    };
}

pub mod runtime {
    pub use crate::runtime::{Clock, Drain, Listener, Net, Pipes, Stopping, Stream, SystemClock};
}

pub mod store {
    pub use crate::store::{
        Bounds, Disk, Due, Flush, Memory, Orphan, Place, Recount, Secret, Store, StoreError, Tally, Updated,
        Usage, Version, update,
    };

    pub mod disk {
        pub use crate::store::disk::{Columns, Error, Row, Unreadable, key, owner};
    }
}

pub mod task {
    pub use crate::task::{
        By, Canceller, Effect, Event, MAX_SERVER_INFO, Moment, Owner, PollBounds, Record, Refusal, Scope,
        State, TaskId, What, apply,
    };

    pub mod retention {
        pub use crate::task::retention::SHORTEST;
    }

    pub mod view {
        pub mod experimental {
            pub use crate::task::view::experimental::{
                Outcome, Reader, Terms, ToolErrors, created, listed, outcome, shown, status,
            };
        }

        pub mod extension {
            pub use crate::task::view::extension::{created, detailed, notified};
        }
    }
}

pub mod telemetry {
    pub use crate::telemetry::{Format, Lines, Outcome, metrics::limits, trace::Tracer};

    pub mod metrics {
        pub use crate::telemetry::metrics::{Seen, write};
    }
}

pub mod upstream {
    pub use crate::upstream::{
        Anchor, Answer, Asked, CallError, Changes, ClientSession, Config, Deferral, Description, Document,
        Event, Identity, Limits, NativeCall, Outgoing, Proxy, Purpose, Question, Replies, Report, Server,
        Streamable, Subscription, TakenUp, Timeouts, Tls, TlsFiles, Upstream, in_memory,
    };

    pub mod lines {
        pub use crate::upstream::stdio::lines::{Line, Lines};
    }

    pub mod http1 {
        pub use crate::upstream::http1::{Framing, HeadReader, Next, is_kept};
    }
}
