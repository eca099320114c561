//! The keys of `telemetry`: trace export. OpenTelemetry's environment variables apply where the file sets
//! nothing.

use super::{header_names::export_header, server::server_url};
use crate::{
    config::schema::{
        DiagnosticSink, Environment, InvalidValue, LoadContext, Node, ScalarType, SecretSource,
        SectionReader, Setting, SourceSpan, SpannedValue, ValueResult, ValueType, entries, invalid, mapping,
        positive_duration, secret_only, secret_source, show_duration, values,
    },
    telemetry::trace::{
        ExportSettings,
        settings::{DEFAULT_TIMEOUT, OtlpProtocol, TraceSampler},
    },
    upstream::ServerUrl,
};
use http::{HeaderName, HeaderValue, Uri};
use serde_json::{Value as Json, json};
use std::time::Duration;

/// The values of the keys of `otlp`; absent ones are read from the environment.
#[derive(Default)]
struct OtlpKeys {
    endpoint: Option<ServerUrl>,
    protocol: Option<OtlpProtocol>,
    headers: Vec<(HeaderName, SpannedValue<SecretSource>)>,
    share: Option<f64>,
    timeout: Option<Duration>,
}

/// The OpenTelemetry environment variables. An empty variable counts as unset (OpenTelemetry, *Environment
/// Variable Specification*).
struct OtelVariables<'a>(&'a Environment);

/// Reads `telemetry`, which has the key `otlp`. `None` if tracing is off.
pub(super) fn read_telemetry(
    s: &mut SectionReader<'_, '_>,
    context: LoadContext<'_>,
) -> Option<ExportSettings> {
    let otlp = s.key("telemetry", "Export of traces.").read_section("`telemetry`", |s| {
        s.key("otlp", "Trace export: the URL of an OTLP collector, a mapping with more options, or `off`. Default: the OpenTelemetry environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT`).")
            .read(otlp_type())
    });
    let written = match otlp {
        Setting::Valid(SpannedValue { value: None, .. }) | Setting::Invalid => return None,
        Setting::Valid(SpannedValue { span, value: Some(written) }) => Some((span, written)),
        Setting::Unset => None,
    };
    let span = written.as_ref().map_or(SourceSpan::Whole, |(span, _)| *span);
    if !cfg!(feature = "otlp") {
        if written.is_some() {
            s.add_problem(span, "`otlp` needs a program that was built with the feature `otlp`; remove it");
        }
        return None;
    }
    match export_settings(written.map(|(_, written)| written), context) {
        Ok(settings) => settings,
        Err(problems) => {
            for (problem_span, message) in problems {
                s.add_problem(problem_span.unwrap_or(span), message);
            }
            None
        }
    }
}

/// The type of `otlp`; `None` for `off`.
fn otlp_type() -> ValueType<'static, Option<OtlpKeys>> {
    let section = || mapping("`otlp`", |s| Some(Some(read_otlp_keys(s))));
    let url = server_url().map(|url| Some(OtlpKeys { endpoint: Some(url), ..OtlpKeys::default() }));
    let url_or_off = move |node: &Node, report: &mut DiagnosticSink| match node.scalar_type() {
        Some(ScalarType::Bool(false)) => Some(None),
        _ if node.scalar_text() == Some("off") => Some(None),
        _ => url.read(node, report),
    };
    let schema =
        move || json!({ "anyOf": [server_url().schema(), { "enum": ["off", false] }, section().schema()] });
    ValueType::new(Json::default, url_or_off).or_mapping(section()).with_schema(schema)
}

fn read_otlp_keys(s: &mut SectionReader<'_, '_>) -> OtlpKeys {
    let percentage = json!({ "type": "string", "pattern": "^[0-9.]+%$" });
    OtlpKeys {
        endpoint: s
            .key("endpoint", "URL of the collector, as in `http://127.0.0.1:4318`.")
            .read(server_url())
            .ok(),
        protocol: s
            .key("protocol", "Protocol of the export: `http` (protobuf in a POST) or `grpc`.")
            .with_default("http")
            .read(ValueType::text(json!({ "enum": ["http", "grpc"] }), parse_protocol))
            .ok(),
        headers: s
            .key("headers", "Headers of each export request, such as an API key: each a secret.")
            .read(headers_type())
            .ok()
            .unwrap_or_default(),
        share: s
            .key("sample", "Share of traces that are recorded, as in `10%`, among those that start at the proxy. For a request with a trace context, the sampling decision of the client applies.")
            .with_default("100%")
            .read(ValueType::text(percentage, parse_percent))
            .ok(),
        timeout: s
            .key("timeout", "Maximum time for one export request.")
            .with_default(&show_duration(DEFAULT_TIMEOUT))
            .read(positive_duration())
            .ok(),
    }
}

/// The type of `headers`: a mapping of names to the sources of their values.
fn headers_type() -> ValueType<'static, Vec<(HeaderName, SpannedValue<SecretSource>)>> {
    let value = secret_only("the header's value", secret_source("a header", "the header's value"));
    entries("NAME: { env: VARIABLE }", export_header, value)
}

fn parse_protocol(text: &str) -> ValueResult<OtlpProtocol> {
    match text {
        "http" | "http/protobuf" => Ok(OtlpProtocol::Http),
        "grpc" => Ok(OtlpProtocol::Grpc),
        _ => invalid(format!("unknown protocol `{text}`; use http or grpc")),
    }
}

fn parse_percent(text: &str) -> ValueResult<f64> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    number.filter(|number| (0.0..=100.0).contains(number)).map(|number| number / 100.0).ok_or_else(|| {
        InvalidValue(format!("`{text}` is not a share; write it from `0%` to `100%`, as in `10%`"))
    })
}

/// Problem messages, with positions for those of the file.
type OtlpProblems = Vec<(Option<SourceSpan>, String)>;

/// Returns the export settings from file and environment; `None` if neither names a collector.
fn export_settings(
    written: Option<OtlpKeys>,
    context: LoadContext<'_>,
) -> Result<Option<ExportSettings>, OtlpProblems> {
    let variables = OtelVariables(context.environment);
    let is_written = written.is_some();
    let OtlpKeys { endpoint, protocol, headers, share, timeout } = written.unwrap_or_default();
    if !is_written && variables.is_disabled() {
        return Ok(None);
    }
    let mut problems = OtlpProblems::new();
    let protocol = protocol.unwrap_or_else(|| variables.protocol(&mut problems));
    let endpoint = match endpoint {
        Some(url) if url.has_variables() => Some((protocol.endpoint(url.uri()), url.shown().to_owned())),
        Some(url) => Some(with_display_text(protocol.endpoint(url.uri()))),
        None => variables.endpoint(protocol, &mut problems).map(with_display_text),
    };
    let Some((endpoint, shown)) = endpoint else {
        if is_written && problems.is_empty() {
            let message =
                "`otlp` names no collector; add `endpoint`, as in `endpoint: http://127.0.0.1:4318`";
            problems.push((None, message.to_owned()));
        }
        return if problems.is_empty() { Ok(None) } else { Err(problems) };
    };
    let mut settings = ExportSettings {
        endpoint,
        display_url: shown,
        sampler: share.map_or_else(
            || variables.sampler(&mut problems),
            |share| TraceSampler { share, ..TraceSampler::default() },
        ),
        timeout: timeout.unwrap_or_else(|| variables.timeout(&mut problems)),
        resource: variables.resource(&mut problems),
        ..ExportSettings::for_collector(&Uri::from_static("http://collector"), protocol)
    };
    variables.headers(&mut settings, &mut problems);
    variables.reject_unsupported(&mut problems);
    for (name, SpannedValue { span, value }) in headers {
        match value.read_header(context) {
            Ok(value) => drop(settings.headers.insert(name, value)),
            Err(InvalidValue(message)) => problems.push((Some(span), message)),
        }
    }
    if problems.is_empty() { Ok(Some(settings)) } else { Err(problems) }
}

/// Returns an endpoint with its display text.
fn with_display_text(endpoint: Uri) -> (Uri, String) {
    let shown = ServerUrl::from(endpoint.clone()).shown().to_owned();
    (endpoint, shown)
}

// === impl OtelVariables ===

impl OtelVariables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        self.0.get_text(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Returns the value of the traces-specific variable, or else of the general one, with its name.
    fn otlp(&self, suffix: &str) -> Option<(String, String)> {
        let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{suffix}"), format!("OTEL_EXPORTER_OTLP_{suffix}")];
        names.into_iter().find_map(|name| self.get(&name).map(|text| (name, text)))
    }

    /// Rejects variables whose settings are not supported, rather than ignoring them.
    fn reject_unsupported(&self, problems: &mut OtlpProblems) {
        if let Some((name, text)) = self.otlp("COMPRESSION").filter(|(_, text)| text != "none") {
            let message = format!("compression `{text}` of exports is not supported; use none, or unset it");
            problems.push(variable_problem(&name, &message));
        }
        if let Some((name, _)) = self.otlp("CERTIFICATE") {
            let message = "a certificate file for the collector is not supported: certificates are verified against the system's roots; use `SSL_CERT_FILE`, and unset this";
            problems.push(variable_problem(&name, message));
        }
        for (name, _) in ["CLIENT_CERTIFICATE", "CLIENT_KEY"].iter().filter_map(|what| self.otlp(what)) {
            let message = "client certificates for the collector are not supported; send a key with `OTEL_EXPORTER_OTLP_HEADERS`, and unset this";
            problems.push(variable_problem(&name, message));
        }
    }

    fn is_disabled(&self) -> bool {
        self.get("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
            || self.get("OTEL_TRACES_EXPORTER").is_some_and(|text| text == "none")
    }

    fn endpoint(&self, protocol: OtlpProtocol, problems: &mut OtlpProblems) -> Option<Uri> {
        let (name, text) = self.otlp("ENDPOINT")?;
        match values::http_url(&text) {
            // The traces-specific endpoint is used as is.
            Ok(url) if name.contains("TRACES") && protocol == OtlpProtocol::Http => Some(url),
            Ok(url) => Some(protocol.endpoint(&url)),
            Err(InvalidValue(message)) => {
                problems.push(variable_problem(&name, &message));
                None
            }
        }
    }

    fn protocol(&self, problems: &mut OtlpProblems) -> OtlpProtocol {
        let Some((name, text)) = self.otlp("PROTOCOL") else { return OtlpProtocol::default() };
        parse_protocol(&text).unwrap_or_else(|_| {
            let message = format!("unknown protocol `{text}`; use http/protobuf or grpc");
            problems.push(variable_problem(&name, &message));
            OtlpProtocol::default()
        })
    }

    fn timeout(&self, problems: &mut OtlpProblems) -> Duration {
        let Some((name, text)) = self.otlp("TIMEOUT") else { return DEFAULT_TIMEOUT };
        match text.parse() {
            Ok(millis) if millis > 0 => Duration::from_millis(millis),
            _ => {
                problems.push(variable_problem(&name, &format!("`{text}` is not a number of milliseconds")));
                DEFAULT_TIMEOUT
            }
        }
    }

    /// Parses headers as `key=value` pairs. Their values may be secrets and are not shown.
    fn headers(&self, settings: &mut ExportSettings, problems: &mut OtlpProblems) {
        let Some((name, text)) = self.otlp("HEADERS") else { return };
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let read = pair.split_once('=').and_then(|(key, value)| {
                let value = HeaderValue::from_str(&percent_decode(value.trim())?).ok()?;
                Some((export_header(key.trim()).ok()?, value))
            });
            match read {
                Some((key, value)) => drop(settings.headers.insert(key, value)),
                None => {
                    return problems.push(variable_problem(
                        &name,
                        "it is not a list of `name=value` pairs, separated by commas",
                    ));
                }
            }
        }
    }

    fn sampler(&self, problems: &mut OtlpProblems) -> TraceSampler {
        let Some(text) = self.get("OTEL_TRACES_SAMPLER") else { return TraceSampler::default() };
        let (follows_parent, root) = match text.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, text.as_str()),
        };
        let share = match root {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => match self.get("OTEL_TRACES_SAMPLER_ARG").map(|share| (share.parse(), share)) {
                None => 1.0,
                Some((Ok(share), _)) if (0.0..=1.0).contains(&share) => share,
                Some((_, share)) => {
                    let message = format!("`{share}` is not a share from 0 to 1");
                    problems.push(variable_problem("OTEL_TRACES_SAMPLER_ARG", &message));
                    1.0
                }
            },
            _ => {
                let message = format!(
                    "unknown sampler `{text}`; use always_on, always_off or traceidratio, or parentbased_ before one of them"
                );
                problems.push(variable_problem("OTEL_TRACES_SAMPLER", &message));
                1.0
            }
        };
        TraceSampler { follows_parent, share }
    }

    fn resource(&self, problems: &mut OtlpProblems) -> Vec<(String, String)> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let mut resource = Vec::new();
        for pair in self.get(name).iter().flat_map(|text| text.split(',')).filter(|it| !it.trim().is_empty())
        {
            match pair.split_once('=').and_then(|(key, value)| Some((key, percent_decode(value.trim())?))) {
                Some((key, value)) if !key.trim().is_empty() => resource.push((key.trim().to_owned(), value)),
                _ => problems.push(variable_problem(name, &format!("`{pair}` is not `key=value`"))),
            }
        }
        if let Some(service) = self.get("OTEL_SERVICE_NAME") {
            resource.retain(|(key, _)| key != "service.name");
            resource.push(("service.name".to_owned(), service));
        }
        resource
    }
}

fn variable_problem(name: &str, message: &str) -> (Option<SourceSpan>, String) {
    (Some(SourceSpan::Whole), format!("the environment variable `{name}` cannot be used: {message}"))
}

/// Decodes a percent-encoded value, as of W3C baggage; `None` if it is invalid.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut input = text.as_bytes();
    while let Some((&byte, more)) = input.split_first() {
        input = more;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (pair, more) = input.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
        input = more;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use super::*;
    use std::path::Path;

    /// Returns the settings from these variables, and from the `written` keys of the file.
    fn settings_from(
        written: Option<OtlpKeys>,
        variables: &[(&str, &str)],
    ) -> Result<Option<ExportSettings>, Vec<String>> {
        let environment = variables.iter().copied().collect();
        let context = LoadContext { folder: Path::new(""), checks_files: false, environment: &environment };
        export_settings(written, context)
            .map_err(|wrong| wrong.into_iter().map(|(_, message)| message).collect())
    }

    fn collector(url: &'static str) -> Option<OtlpKeys> {
        Some(OtlpKeys { endpoint: Some(Uri::from_static(url).into()), ..OtlpKeys::default() })
    }

    #[test]
    fn unsupported_variables_are_rejected_with_an_alternative() {
        let with = |name, value| settings_from(collector("http://c"), &[(name, value)]);
        for (name, value, way_out) in [
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "use none"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip", "use none"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem", "`SSL_CERT_FILE`"),
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/ca.pem", "`SSL_CERT_FILE`"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/own.pem", "`OTEL_EXPORTER_OTLP_HEADERS`"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/own.key", "`OTEL_EXPORTER_OTLP_HEADERS`"),
        ] {
            let wrong = with(name, value).expect_err(name);
            let [message] = &wrong[..] else { panic!("{wrong:?}") };
            assert!(message.contains(&format!("`{name}`")) && message.contains(way_out), "{message}");
            assert_eq!(settings_from(None, &[(name, value)]), Ok(None), "nothing is traced");
        }
        assert!(with("OTEL_EXPORTER_OTLP_COMPRESSION", "none").is_ok());
    }

    #[test]
    fn nothing_is_exported_without_a_collector() {
        assert_eq!(settings_from(None, &[]), Ok(None));
        assert_eq!(
            settings_from(None, &[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")]),
            Ok(None)
        );
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(settings_from(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), off]), Ok(None));
            assert!(settings_from(collector("http://c"), &[off]).unwrap().is_some(), "the file holds");
        }
        assert!(settings_from(Some(OtlpKeys::default()), &[]).unwrap_err()[0].contains("names no collector"));
    }

    #[test]
    fn open_telemetry_variables_apply_where_the_file_sets_nothing() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:4318/base"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-more=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=old,deployment.environment.name=te%2Cst"),
            ("OTEL_SERVICE_NAME", "gateway"),
        ];
        let settings = settings_from(None, &variables).unwrap().expect("one is named");
        assert_eq!(settings.endpoint, "https://all:4318/base/v1/traces");
        assert_eq!(
            (&settings.headers["api-key"], &settings.headers["x-more"]),
            (&"a b".parse().unwrap(), &"1".parse().unwrap())
        );
        assert_eq!((settings.timeout, settings.sampler.share), (Duration::from_millis(2500), 0.25));
        assert!(!settings.sampler.follows_parent);
        let resource: Vec<_> = settings.resource.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(resource, [("deployment.environment.name", "te,st"), ("service.name", "gateway")]);
        let settings = settings_from(collector("http://own:1"), &variables).unwrap().unwrap();
        assert_eq!(settings.endpoint, "http://own:1/v1/traces");
        assert_eq!(settings.headers.len(), 2);
    }

    #[test]
    fn traces_specific_variables_take_precedence() {
        let settings = settings_from(
            None,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all"),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/as/it/is"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ],
        );
        let settings = settings.unwrap().unwrap();
        assert_eq!(
            (settings.endpoint.to_string().as_str(), settings.protocol),
            ("http://traces/as/it/is", OtlpProtocol::Http)
        );
    }

    #[test]
    fn an_invalid_variable_is_named_without_showing_headers() {
        for (name, text) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret-0000"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_RESOURCE_ATTRIBUTES", "x"),
        ] {
            let wrong =
                settings_from(None, &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c"), (name, text)]);
            let wrong = match name {
                "OTEL_EXPORTER_OTLP_ENDPOINT" => settings_from(None, &[(name, text)]),
                _ => wrong,
            };
            let [wrong] = &wrong.expect_err(name)[..] else { panic!("{name}") };
            assert!(wrong.contains(name) && !wrong.contains("secret-0000"), "{wrong}");
        }
    }
}
