//! What the operator has set: where traces go, and which.

use crate::protocol::TraceContext;
use http::{HeaderMap, Uri};
use std::time::Duration;

/// Where traces go, and which.
#[derive(Clone, PartialEq)]
pub struct ExportSettings {
    /// With the path that spans are posted to.
    pub endpoint: Uri,
    /// The collector as it is shown: variables by their names, and no query.
    pub shown: String,
    pub protocol: OtlpProtocol,
    /// Sent with each export. May hold a key.
    pub headers: HeaderMap,
    pub sampler: TraceSampler,
    /// For one export, its answer included.
    pub timeout: Duration,
    /// What is said of this process, beside what it says itself.
    pub resource: Vec<(String, String)>,
}

/// How spans are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf in the body of a POST.
    #[default]
    Http,
    Grpc,
}

/// Which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSampler {
    /// What the client has decided holds, where it has.
    pub follows_parent: bool,
    /// The share of all others, from 0 to 1.
    pub share: f64,
}

/// As long as the specification of OTLP has it.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans are posted to, below the URL of a collector (OTLP, *OTLP/HTTP Request*).
const HTTP_PATH: &str = "/v1/traces";
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

// === impl Settings ===

impl ExportSettings {
    /// Traces go to this collector, and nothing else is set.
    pub fn for_collector(collector: &Uri, protocol: OtlpProtocol) -> Self {
        Self {
            endpoint: protocol.endpoint(collector),
            shown: String::new(),
            protocol,
            headers: HeaderMap::new(),
            sampler: TraceSampler::default(),
            timeout: TIMEOUT,
            resource: Vec::new(),
        }
    }
}

impl std::fmt::Debug for ExportSettings {
    /// Without the headers, which may hold a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { endpoint: _, shown, protocol, headers, sampler, timeout, resource } = self;
        f.debug_struct("Settings")
            .field("endpoint", shown)
            .field("protocol", protocol)
            .field("headers", &headers.keys().collect::<Vec<_>>())
            .field("sampler", sampler)
            .field("timeout", timeout)
            .field("resource", resource)
            .finish()
    }
}

// === impl Protocol ===

impl OtlpProtocol {
    /// Where spans are posted to at this collector. One that names the whole path already is taken at its word.
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
        parts.path_and_query = Some(path.parse().expect("a path of a URL, and ours"));
        Uri::from_parts(parts).expect("the parts of a URL make one")
    }
}

// === impl Sampler ===

impl Default for TraceSampler {
    fn default() -> Self {
        Self { follows_parent: true, share: 1.0 }
    }
}

impl TraceSampler {
    /// Whether a trace of this id is recorded; `parent` is the client's span.
    pub fn is_sampled(self, trace: &[u8; 16], parent: Option<&TraceContext>) -> bool {
        if let Some(parent) = parent
            && self.follows_parent
        {
            return parent.is_sampled();
        }
        // As the SDKs do it, so that those with the same share choose the same traces.
        let [.., a, b, c, d, e, f, g, h] = *trace;
        let drawn = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
        drawn < (self.share.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64
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
    fn a_share_of_the_traces_is_recorded_and_what_the_client_decided_holds() {
        let parent = |flags| TraceContext { trace: [9; 16], span: [1; 8], flags, state: None };
        let tenth = TraceSampler { share: 0.1, ..TraceSampler::default() };
        let mut ids = (0..10_000_u64).map(|n| {
            let mut id = [0; 16];
            // Spread over all there are.
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
    fn headers_do_not_show_themselves() {
        let mut settings =
            ExportSettings::for_collector(&Uri::from_static("http://c:4318"), OtlpProtocol::Http);
        settings.headers.insert("api-key", "secret-0000".parse().unwrap());
        assert!(!format!("{settings:?}").contains("secret-0000"));
    }
}
