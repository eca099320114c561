//! The methods of the protocol, and those that a 2026-07-28 client may call.

use std::{borrow::Cow, fmt};

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A method by name. An unknown name is preserved.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Method {
            $($(#[$doc])* $name,)*
            /// A method of an extension or of a later revision.
            Other(Box<str>),
        }

        impl Method {
            /// The name in messages.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Other(name) => name,
                }
            }
        }

        impl From<Cow<'_, str>> for Method {
            fn from(name: Cow<'_, str>) -> Self {
                match &*name {
                    $($text => Self::$name,)*
                    _ => Self::Other(name.into_owned().into()),
                }
            }
        }
    };
}

methods! {
    Discover = "server/discover",
    Initialize = "initialize",
    Ping = "ping",
    ToolsList = "tools/list",
    ToolsCall = "tools/call",
    PromptsList = "prompts/list",
    PromptsGet = "prompts/get",
    ResourcesList = "resources/list",
    ResourceTemplatesList = "resources/templates/list",
    ResourcesRead = "resources/read",
    ResourcesSubscribe = "resources/subscribe",
    ResourcesUnsubscribe = "resources/unsubscribe",
    Complete = "completion/complete",
    SetLevel = "logging/setLevel",
    Listen = "subscriptions/listen",
    TasksGet = "tasks/get",
    TasksUpdate = "tasks/update",
    TasksCancel = "tasks/cancel",
    TasksResult = "tasks/result",
    TasksList = "tasks/list",
    Elicit = "elicitation/create",
    CreateMessage = "sampling/createMessage",
    RootsList = "roots/list",
    Initialized = "notifications/initialized",
    Cancelled = "notifications/cancelled",
    Progress = "notifications/progress",
    Message = "notifications/message",
    ToolsListChanged = "notifications/tools/list_changed",
    PromptsListChanged = "notifications/prompts/list_changed",
    ResourcesListChanged = "notifications/resources/list_changed",
    ResourceUpdated = "notifications/resources/updated",
    RootsListChanged = "notifications/roots/list_changed",
    SubscriptionsAcknowledged = "notifications/subscriptions/acknowledged",
    TasksNotification = "notifications/tasks",
    TaskStatus = "notifications/tasks/status",
    ElicitationComplete = "notifications/elicitation/complete",
}

/// A list that a server offers, and whose changes it may announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
}

/// The server capability that a method requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredCapability {
    /// No capability.
    Nothing,
    Tools,
    Prompts,
    Resources,
    Completions,
}

// === impl Method ===

impl Method {
    /// The capability that the server must have declared for a 2026-07-28 client to call this method; `None`
    /// if the revision has no such method for clients. The list is closed: methods that the revision removed
    /// (`ping`, `logging/setLevel`, …) are unknown to the client although the server has them.
    pub fn modern_requirement(&self) -> Option<RequiredCapability> {
        match self {
            Self::Discover | Self::Listen | Self::TasksGet | Self::TasksUpdate | Self::TasksCancel => {
                Some(RequiredCapability::Nothing)
            }
            Self::ToolsList | Self::ToolsCall => Some(RequiredCapability::Tools),
            Self::PromptsList | Self::PromptsGet => Some(RequiredCapability::Prompts),
            Self::ResourcesList | Self::ResourceTemplatesList | Self::ResourcesRead => {
                Some(RequiredCapability::Resources)
            }
            Self::Complete => Some(RequiredCapability::Completions),
            _ => None,
        }
    }

    /// Whether this is one of the `…/list` methods, which page through tools, prompts, resources or resource
    /// templates.
    pub fn is_list(&self) -> bool {
        matches!(
            self,
            Self::ToolsList | Self::PromptsList | Self::ResourcesList | Self::ResourceTemplatesList
        )
    }

    /// Whether a result of this method carries `ttlMs` and `cacheScope` (2026-07-28, *Caching*).
    pub fn is_cacheable(&self) -> bool {
        matches!(
            self,
            Self::Discover
                | Self::ToolsList
                | Self::PromptsList
                | Self::ResourcesList
                | Self::ResourceTemplatesList
                | Self::ResourcesRead
        )
    }

    /// Whether a server may send input requests while it serves this method (2026-07-28, *MRTR*).
    pub fn can_request_input(&self) -> bool {
        matches!(self, Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead)
    }

    /// Whether a request of this method is idempotent and can be sent again: it reads, or sets the same
    /// value. `false` for a method that executes something (`tools/call`, `prompts/get`, `resources/read`),
    /// that responds differently the second time, or that is unknown.
    pub fn is_repeatable(&self) -> bool {
        matches!(
            self,
            Self::Discover
                | Self::Initialize
                | Self::Ping
                | Self::ToolsList
                | Self::PromptsList
                | Self::ResourcesList
                | Self::ResourceTemplatesList
                | Self::ResourcesSubscribe
                | Self::ResourcesUnsubscribe
                | Self::Complete
                | Self::SetLevel
                | Self::TasksGet
                | Self::TasksResult
                | Self::TasksList
        )
    }

    /// Whether this is one of the task methods of 2025-11-25.
    pub fn is_legacy_task_method(&self) -> bool {
        matches!(self, Self::TasksGet | Self::TasksResult | Self::TasksCancel | Self::TasksList)
    }

    /// The member of `params` whose value the header `Mcp-Name` repeats; `None` for a method without that
    /// header.
    pub fn name_member(&self) -> Option<&'static str> {
        match self {
            Self::ToolsCall | Self::PromptsGet => Some("name"),
            Self::ResourcesRead => Some("uri"),
            Self::TasksGet | Self::TasksUpdate | Self::TasksCancel => Some("taskId"),
            _ => None,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl ListKind ===

impl ListKind {
    pub const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// The name of the server capability under which `listChanged` is declared.
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
        }
    }

    /// The notification that the list has changed.
    pub const fn changed_notification(self) -> Method {
        match self {
            Self::Tools => Method::ToolsListChanged,
            Self::Prompts => Method::PromptsListChanged,
            Self::Resources => Method::ResourcesListChanged,
        }
    }

    /// The list whose change a notification reports, if it reports one.
    pub fn from_changed_notification(method: &Method) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.changed_notification() == *method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_unknown_ones_are_kept() {
        assert_eq!(Method::from(Cow::from("tools/call")), Method::ToolsCall);
        assert_eq!(Method::from(Cow::from("vendor/x")).as_str(), "vendor/x");
    }

    #[test]
    fn removed_methods_are_not_served_to_modern_clients() {
        for removed in [
            Method::Initialize,
            Method::Ping,
            Method::SetLevel,
            Method::ResourcesSubscribe,
            Method::ResourcesUnsubscribe,
            Method::TasksResult,
            Method::TasksList,
        ] {
            assert_eq!(removed.modern_requirement(), None, "{removed}");
        }
    }
}
