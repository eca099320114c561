//! Items of this crate for its tests and benches; no part of the public API. Each item is listed, so that the
//! compiler still reports unused items that are not.
//!
//! A test that needs another item adds its line to the module of that folder.

pub mod app {
    pub use crate::app::{Error, RunningProxy, start, start_on, start_with, start_with_upstream};
}

pub mod bridge {
    pub use crate::bridge::{Exchange, ExchangeAction, ToolParamHeaders};

    pub mod elicit {
        pub use crate::bridge::elicit::check_input_response;
    }

    pub mod exchange {
        pub use crate::bridge::exchange::{CallDeadlines, ExchangePhase, InputDelivery, InputNumber};
    }

    pub mod offer {
        pub use crate::bridge::offer::{ServerTaskSupport, edit_tool_list, read_task_support, rewrite_call};
    }

    pub mod relay {
        pub use crate::bridge::relay::{LossReason, RelayAction, RelayOutcome, RelayPhase, ResponseRelay};
    }

    pub mod resume {
        pub use crate::bridge::request_state::{
            RequestBinding, RequestState, RequestStateError, RetryTarget, SealKeyring,
        };
    }
}

pub mod admin {
    pub use crate::admin::{AdminServer, ChangedKeys, Config};
}

pub mod config {
    pub use crate::config::{
        Config, Environment, LogFormat, StoreConfig, StoreKeySource, check, check_in, load, load_with, parse,
        schema,
    };
}

pub mod dialect {
    pub use crate::dialect::{Call, CallResponse, Caller, ClientInfo, Credentials, Principal, PrincipalKey};

    pub mod legacy {
        pub use crate::dialect::legacy::{ClientMessage, LegacyPost, ResponseTracker, ResumePosition};
    }

    pub mod modern {
        pub use crate::dialect::modern::{ModernMessage, build_call, read_message, translate_notification};
    }

    pub mod raise {
        pub use crate::dialect::translate::{
            translate_bare_result, translate_error, translate_request, translate_response,
        };
    }
}

pub mod front {
    pub use crate::front::{
        ClientLimits, ClientTimeouts, Config, Error, FrontHandle, HealthConfig, IdentityKeys, TlsPaths, serve,
    };
}

pub mod policy {
    pub use crate::policy::{
        AccessPolicy, ClientMatch, DeferPolicy, HolderMatch, InputPolicy, KeepAliveTimer, LegacyTaskPolicy,
        MIN_RETENTION, Mode, NamePattern, PrincipalSource, ResumePolicy, Route, TaskQuotas, TicketHolder,
        TicketPolicy, TokenSet, UnsolicitedTasks, WaitPolicy,
    };
}

pub mod protocol {
    pub use crate::protocol::{
        Capabilities, ClockOffset, ClockReading, ErrorObject, Frame, FrameError, InputRequest, Kind,
        ListKind, MessageReader, Method, Payload, ProgressHeartbeat, RequestId, Timestamp, TraceContext,
        WallTime, meta,
    };

    pub mod canonical {
        pub use crate::protocol::canonical::canonicalize;
    }

    pub mod frame {
        pub use crate::protocol::frame::{bracket_depth, to_single_line};
    }

    pub mod glance {
        pub use crate::protocol::message_kind::{KindSniffer, MessageKind};
    }

    pub mod headers {
        pub use crate::protocol::headers::{
            HeaderMismatch, MalformedHeader, ParamHeader, check_params, decode, encode, param_headers, read,
        };
    }

    pub mod splice {
        pub use crate::protocol::splice::{BytesPatch, JsonObject, ObjectEdit};
    }

    pub mod sse {
        pub use crate::protocol::sse::{
            EventDecoder, EventIdAssigner, EventSplitter, EventTooLarge, MessageFilter, NumberedEvent,
            ResponseEditor, SseEvent, StreamObserver,
        };
    }

    pub mod tool_result {
        pub use crate::protocol::tool_result::{first_text, is_error};
    }

    pub mod status_message {
        pub use crate::protocol::status_message::MAX_STATUS_MESSAGE_BYTES;
    }
}

pub mod proxy {
    pub use crate::proxy::{
        AccessSummary, AnchorSeal, CallRegistry, CallReply, CancelOutcome, DeliveryCommit, Endpoint,
        LegacyRequest, LegacyResponse, OperatorTasks, ReplyItem, ReplyStream, ResponseBody, RestoredInput,
        RouteService, TaskAdmissionError, TaskAnchor, TaskLedger,
    };
}

pub mod runtime {
    pub use crate::runtime::{
        Clock, Drain, DrainWatch, Network, NetworkListener, NetworkStream, PipeNetwork, SteadyClock,
        SystemClock,
    };
}

pub mod store {
    pub use crate::store::{
        DiskStore, DueTask, Durability, ListCursor, LoadedTask, MemoryStore, OrphanTask, ProcessId,
        RecentTask, RecordVersion, Recount, Store, StoreBounds, StoreError, StoreSecret, StoreUsage,
        TaskOwnership, TaskTally, UpdateOutcome, update,
    };

    pub mod disk {
        pub use crate::store::disk::{
            Error, RecordRow, RowColumns, RowError, check, encode_owner, load_or_create_key,
        };
    }
}

pub mod task {
    pub use crate::task::{
        Canceller, EventRefusal, HistoryEntry, HistoryKind, MAX_SERVER_INFO, PollBounds, Record, TaskEffect,
        TaskEvent, TaskId, TaskPrincipal, TaskSharing, TaskState, TaskTrigger, apply,
    };

    pub mod retention {
        pub use crate::task::retention::MIN_RETENTION;
    }

    pub mod view {
        pub mod experimental {
            pub use crate::task::view::experimental::{
                TaskOutcome, TaskResultFormat, ToolErrors, ViewOptions, create_task_result, task_list,
                task_object, task_outcome, task_status,
            };
        }

        pub mod extension {
            pub use crate::task::view::extension::{
                create_task_result, get_task_result, notification_params,
            };
        }
    }
}

pub mod telemetry {
    pub use crate::telemetry::{
        LineFormat, LogLayer, RequestOutcome, metrics::limit_snapshots, trace::Tracer,
    };

    pub mod metrics {
        pub use crate::telemetry::metrics::{GaugeSnapshot, write_text};
    }
}

pub mod upstream {
    pub use crate::upstream::{
        ApplyReload, CallAnchor, CallError, CallResumption, CallerIdentity, ChangeNotification,
        ChangeNotifier, ClientSession, Config, Deferral, HttpOrigin, HttpRelay, HttpUpstream, NativeCall,
        OriginResponse, OutgoingCall, PendingServerRequest, Proxy, ReadyServer, RequestPurpose, Responder,
        ResumedCall, ServerRequest, Subscription, TlsFiles, ToolChanges, Upstream, UpstreamDescription,
        UpstreamEvent, UpstreamEvents, UpstreamLimits, UpstreamSetupError, UpstreamStatus, UpstreamTarget,
        UpstreamTimeouts, UpstreamTls, duplex::in_memory,
    };

    pub mod lines {
        pub use crate::upstream::stdio::lines::{OutputLine, OutputLines};
    }

    pub mod http1 {
        pub use crate::upstream::http1::{BodyFraming, BodyPart, HeadReader, is_keep_alive};
    }
}
