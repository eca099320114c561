//! Settings of the trace export.

use crate::protocol::TraceContext;
use http::{HeaderMap, Uri};
use std::time::Duration;

/// Settings of the trace export.
#[derive(Clone, PartialEq)]
pub struct ExportSettings {
    /// The URL of exports, including the path.
    pub endpoint: Uri,
    /// The collector's URL for display, without the query; environment variables in it are shown by name, not
    /// by value.
    pub display_url: String,
    pub protocol: OtlpProtocol,
    /// Headers of each export. May contain secrets.
    pub headers: HeaderMap,
    /// The decision which traces are recorded.
    pub sampler: TraceSampler,
    /// Time for one export, including the response.
    pub timeout: Duration,
    /// Resource attributes in addition to the built-in ones.
    pub resource: Vec<(String, String)>,
}

/// The protocol of the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf in the body of a POST.
    #[default]
    Http,
    /// A gRPC call.
    Grpc,
}

/// The decision which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSampler {
    /// Whether the sampling decision in the client's trace context applies, if there is one.
    pub follows_parent: bool,
    /// The share of all other traces that is recorded, from 0 to 1.
    pub share: f64,
}

/// The default time limit of one export, from the OTLP specification.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The path of exports below the URL of a collector (OTLP, *OTLP/HTTP Request*).
const HTTP_PATH: &str = "/v1/traces";
/// The path of the gRPC method.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

// === impl ExportSettings ===

impl ExportSettings {
    /// The default settings for the collector at this URL.
    pub fn for_collector(collector: &Uri, protocol: OtlpProtocol) -> Self {
        Self {
            endpoint: protocol.endpoint(collector),
            display_url: String::new(),
            protocol,
            headers: HeaderMap::new(),
            sampler: TraceSampler::default(),
            timeout: DEFAULT_TIMEOUT,
            resource: Vec::new(),
        }
    }
}

impl std::fmt::Debug for ExportSettings {
    /// Omits header values, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { endpoint: _, display_url, protocol, headers, sampler, timeout, resource } = self;
        f.debug_struct("ExportSettings")
            .field("endpoint", display_url)
            .field("protocol", protocol)
            .field("headers", &headers.keys().collect::<Vec<_>>())
            .field("sampler", sampler)
            .field("timeout", timeout)
            .field("resource", resource)
            .finish()
    }
}

// === impl OtlpProtocol ===

impl OtlpProtocol {
    /// The URL of exports for this collector. A URL that ends with the complete path is used as is.
    pub fn endpoint(self, collector: &Uri) -> Uri {
        let base = collector.path().trim_end_matches('/');
        let path = match self {
            Self::Http if base.ends_with(HTTP_PATH) => base.to_owned(),
            Self::Http => format!("{base}{HTTP_PATH}"),
            Self::Grpc => GRPC_PATH.to_owned(),
        };
        let path = match collector.query().filter(|_| self == Self::Http) {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let mut parts = collector.clone().into_parts();
        parts.path_and_query = Some(path.parse().expect("a valid path"));
        Uri::from_parts(parts).expect("valid parts make a URI")
    }
}

// === impl TraceSampler ===

impl Default for TraceSampler {
    fn default() -> Self {
        Self { follows_parent: true, share: 1.0 }
    }
}

impl TraceSampler {
    /// Whether a trace with this id is recorded; `parent` is the span of the client, if it sent one.
    pub fn is_sampled(self, trace: &[u8; 16], parent: Option<&TraceContext>) -> bool {
        if let Some(parent) = parent
            && self.follows_parent
        {
            return parent.is_sampled();
        }
        // Use the algorithm of the OpenTelemetry SDKs, so that processes with the same share select the same
        // traces.
        let [.., a, b, c, d, e, f, g, h] = *trace;
        let random = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
        random < (self.share.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_below_the_collectors_url() {
        let at =
            |protocol: OtlpProtocol, url: &'static str| protocol.endpoint(&Uri::from_static(url)).to_string();
        for (url, endpoint) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/otlp/", "https://c/otlp/v1/traces"),
            ("https://c/v1/traces", "https://c/v1/traces"),
            ("https://c/otlp?k=v", "https://c/otlp/v1/traces?k=v"),
        ] {
            assert_eq!(at(OtlpProtocol::Http, url), endpoint);
        }
        assert_eq!(at(OtlpProtocol::Grpc, "http://c:4317/ignored?x"), format!("http://c:4317{GRPC_PATH}"));
    }

    #[test]
    fn a_share_of_traces_is_recorded_and_client_decisions_apply() {
        let parent = |flags| TraceContext { trace: [9; 16], span: [1; 8], flags, state: None };
        let tenth = TraceSampler { share: 0.1, ..TraceSampler::default() };
        let mut ids = (0..10_000_u64).map(|n| {
            let mut id = [0; 16];
            // Ids spread over the whole range.
            id[8..].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            id
        });
        let taken = ids.clone().filter(|id| tenth.is_sampled(id, None)).count();
        assert!((950..1050).contains(&taken), "{taken}");
        assert!(tenth.is_sampled(&[0xff; 16], Some(&parent(1))));
        assert!(!TraceSampler::default().is_sampled(&[0; 16], Some(&parent(0))));
        let own = TraceSampler { follows_parent: false, share: 1.0 };
        assert!(ids.clone().all(|id| own.is_sampled(&id, Some(&parent(0)))));
        let none = TraceSampler { follows_parent: false, share: 0.0 };
        assert!(!ids.any(|id| none.is_sampled(&id, Some(&parent(1)))));
    }

    #[test]
    fn headers_are_hidden_in_debug_output() {
        let mut settings =
            ExportSettings::for_collector(&Uri::from_static("http://c:4318"), OtlpProtocol::Http);
        settings.headers.insert("api-key", "secret-0000".parse().unwrap());
        assert!(!format!("{settings:?}").contains("secret-0000"));
    }
}
