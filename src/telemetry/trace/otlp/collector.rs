//! The collector: an export is one HTTP request or one gRPC call, both over hyper.

use super::protobuf::PartialSuccess;
use crate::telemetry::trace::settings::{ExportSettings, OtlpProtocol};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{error::Error, sync::Arc, time::Duration};
use tokio::time::timeout;

/// A client of an OTLP collector.
pub(super) struct OtlpCollector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    endpoint: Uri,
    protocol: OtlpProtocol,
    headers: HeaderMap,
    timeout: Duration,
}

/// A failed export.
#[derive(Debug)]
pub(super) struct ExportError {
    /// The reason, for the log.
    pub(super) reason: String,
    /// `Some` if a retry could help; the inner value is the delay that the collector requested, if any.
    pub(super) retry: Option<Option<Duration>>,
}

/// Maximum size of a collector's response, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Maximum length of a collector's message in the log, in characters.
pub(super) const MAX_REASON_CHARS: usize = 200;

// === impl OtlpCollector ===

impl OtlpCollector {
    pub(super) fn new(settings: &ExportSettings) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        // If there are no root certificates, the connection fails with an explicit error.
        if settings.endpoint.scheme_str() == Some("https") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring has the default versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let connector = match settings.protocol {
            OtlpProtocol::Http => connector.enable_all_versions().build(),
            OtlpProtocol::Grpc => connector.enable_http2().build(),
        };
        let mut client = Client::builder(TokioExecutor::new());
        client.http2_only(settings.protocol == OtlpProtocol::Grpc);
        let mut headers = settings.headers.clone();
        let mut set_header = |name, value| headers.insert(name, HeaderValue::from_static(value));
        set_header(header::USER_AGENT, concat!("deferral/", env!("CARGO_PKG_VERSION")));
        match settings.protocol {
            OtlpProtocol::Http => drop(set_header(header::CONTENT_TYPE, "application/x-protobuf")),
            OtlpProtocol::Grpc => {
                set_header(header::CONTENT_TYPE, "application/grpc");
                set_header(header::TE, "trailers");
            }
        }
        Self {
            client: client.build(connector),
            endpoint: settings.endpoint.clone(),
            protocol: settings.protocol,
            headers,
            timeout: settings.timeout,
        }
    }

    /// Sends one export. Returns how many spans the collector rejected, and why; `None` if it accepted all.
    ///
    /// # Errors
    /// [`ExportError`] if the collector accepted nothing.
    pub(super) async fn export(&self, request: Bytes) -> Result<Option<PartialSuccess>, ExportError> {
        let body = match self.protocol {
            OtlpProtocol::Http => request,
            OtlpProtocol::Grpc => frame_message(&request),
        };
        let mut post = Request::new(Full::new(body));
        *post.method_mut() = Method::POST;
        *post.uri_mut() = self.endpoint.clone();
        *post.headers_mut() = self.headers.clone();
        let exchange = async {
            let response = self.client.request(post).await.map_err(|error| connection_error(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES)
                .collect()
                .await
                .map_err(|error| connection_error(&*error))?;
            Ok(Response::from_parts(head, body))
        };
        let response = timeout(self.timeout, exchange).await.unwrap_or_else(|_| {
            let reason = format!("no response within {:?}", self.timeout);
            Err(ExportError { reason, retry: Some(None) })
        })?;
        match self.protocol {
            OtlpProtocol::Http => read_http_response(response),
            OtlpProtocol::Grpc => read_grpc_response(response),
        }
    }
}

/// The error for a failed connection, with all its causes; a retry could help.
fn connection_error(error: &(dyn Error + 'static)) -> ExportError {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let messages: Vec<_> = causes.map(ToString::to_string).collect();
    ExportError { reason: messages.join(": "), retry: Some(None) }
}

/// Frames a message for gRPC: uncompressed, with a length prefix.
fn frame_message(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("a batch is smaller than 4 GiB"));
    framed.put_slice(message);
    framed.freeze()
}

fn read_http_response(response: Response<Collected<Bytes>>) -> Result<Option<PartialSuccess>, ExportError> {
    let (head, body) = response.into_parts();
    if head.status.is_success() {
        return Ok(PartialSuccess::read(&body.to_bytes()));
    }
    // These statuses allow a retry (OTLP, *Failures*).
    let is_retryable = matches!(
        head.status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let retry_after =
        head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    Err(ExportError {
        reason: format!("HTTP {}", head.status.as_u16()),
        retry: is_retryable.then(|| retry_after.map(Duration::from_secs)),
    })
}

fn read_grpc_response(response: Response<Collected<Bytes>>) -> Result<Option<PartialSuccess>, ExportError> {
    let (head, body) = response.into_parts();
    // A gRPC response without a body has its trailers in the head.
    let trailers = body.trailers().filter(|trailers| trailers.contains_key("grpc-status"));
    let trailers_or_head = trailers.unwrap_or(&head.headers).clone();
    let trailer = |name: &str| trailers_or_head.get(name).and_then(|value| value.to_str().ok());
    let code: Option<u8> = trailer("grpc-status").and_then(|code| code.parse().ok());
    match code {
        Some(0) => Ok(body.to_bytes().get(5..).and_then(PartialSuccess::read)),
        Some(code) => {
            let message: String =
                trailer("grpc-message").unwrap_or_default().chars().take(MAX_REASON_CHARS).collect();
            // These codes allow a retry (OTLP, *OTLP/gRPC Response*).
            let is_retryable = matches!(code, 1 | 4 | 8 | 10 | 11 | 14 | 15);
            Err(ExportError {
                reason: format!("gRPC status {code} {message}"),
                retry: is_retryable.then_some(None),
            })
        }
        None => {
            let is_retryable = head.status.is_server_error() || head.status == StatusCode::TOO_MANY_REQUESTS;
            let reason = format!("HTTP {} without a gRPC status", head.status.as_u16());
            Err(ExportError { reason, retry: is_retryable.then_some(None) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    #[tokio::test]
    async fn an_endless_response_is_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("it is asked");
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            // Until the client closes the connection.
            while socket.write_all(&[0; 4096]).await.is_ok() {}
        });
        let collector = OtlpCollector::new(&ExportSettings::for_collector(
            &url.parse().expect("a URL"),
            OtlpProtocol::Http,
        ));
        let not_taken = collector.export(Bytes::new()).await.expect_err("it never ends");
        assert!(not_taken.reason.contains("limit"), "{not_taken:?}");
        server.await.expect("it is let go");
    }

    #[test]
    fn an_error_says_whether_a_retry_could_help() {
        let answer = |status: u16, headers: &[(&'static str, &'static str)]| {
            let mut answer = Response::new(Collected::default());
            *answer.status_mut() = status.try_into().expect("a status");
            for (name, value) in headers {
                answer.headers_mut().insert(*name, HeaderValue::from_static(value));
            }
            answer
        };
        let again = |answer| read_http_response(answer).expect_err("nothing was taken").retry;
        assert_eq!(again(answer(400, &[])), None);
        assert_eq!(again(answer(503, &[])), Some(None));
        assert_eq!(again(answer(429, &[("retry-after", "7")])), Some(Some(Duration::from_secs(7))));
        let grpc = |status| read_grpc_response(answer(200, &[("grpc-status", status)]));
        assert_eq!(grpc("0").expect("all was taken"), None);
        assert_eq!(grpc("14").expect_err("it is away").retry, Some(None));
        assert_eq!(grpc("3").expect_err("it is no use").retry, None);
        assert_eq!(read_grpc_response(answer(502, &[])).expect_err("something in between").retry, Some(None));
    }
}
