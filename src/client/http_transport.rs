//! HTTP requests to one server, and the bodies of its responses.

use super::{Error, error::innermost_cause};
use crate::protocol::{
    accept,
    sse::{EventDecoder, SseEvent},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::sync::Arc;

/// Largest message of a server, in bytes; a larger one is an error.
pub(super) const MAX_MESSAGE: usize = 256 << 20;

/// An HTTP client of one server.
#[derive(Clone, Debug)]
pub(super) struct HttpTransport {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    /// Headers that the user gave, sent with each request.
    headers: HeaderMap,
}

/// A reader of an event stream.
pub(super) struct EventReader {
    url: Uri,
    body: Incoming,
    decoder: EventDecoder,
}

/// A reader of a body of lines.
pub struct LineReader {
    url: Uri,
    body: Incoming,
    buffer: BytesMut,
}

// === impl HttpTransport ===

impl HttpTransport {
    pub(super) fn new(url: Uri, headers: HeaderMap) -> Self {
        // Without readable root certificates no HTTPS server is trusted, which the connection's error
        // reports; HTTP needs none.
        let mut roots = rustls::RootCertStore::empty();
        if url.scheme_str() == Some("https") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring has the default versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .build();
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Self { http, url, headers }
    }

    /// Posts one message, and returns the head of the response.
    pub(super) async fn post(&self, message: String, extra: HeaderMap) -> Result<Response<Incoming>, Error> {
        let mut headers = HeaderMap::with_capacity(extra.len() + 2);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(accept::JSON));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.extend(extra);
        self.send(Method::POST, message, headers).await
    }

    /// Sends one request; `extra` headers are added to those of each request.
    pub(super) async fn send(
        &self,
        method: Method,
        body: String,
        extra: HeaderMap,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().extend(extra);
        self.http.request(request).await.map_err(|error| {
            let (url, detail) = (self.url.clone(), innermost_cause(&error));
            if error.is_connect() {
                Error::Unreachable { url, detail }
            } else {
                Error::Broken { url, detail }
            }
        })
    }

    /// Reads a body to its end.
    pub(super) async fn read_body(&self, body: Incoming) -> Result<Bytes, Error> {
        match Limited::new(body, MAX_MESSAGE).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Error::TooLarge),
            Err(error) => Err(Error::Broken { url: self.url.clone(), detail: innermost_cause(&*error) }),
        }
    }

    /// Reads a body as an event stream.
    pub(super) fn events(&self, body: Incoming) -> EventReader {
        EventReader { url: self.url.clone(), body, decoder: EventDecoder::new(MAX_MESSAGE) }
    }

    /// Reads a body line by line.
    pub(super) fn lines(&self, body: Incoming) -> LineReader {
        LineReader { url: self.url.clone(), body, buffer: BytesMut::new() }
    }

    /// Returns the error for a stream that ended before its response.
    pub(super) fn truncated_error(&self) -> Error {
        Error::Broken { url: self.url.clone(), detail: "the stream ended without the response".to_owned() }
    }
}

/// Whether a response is an event stream.
pub(super) fn is_event_stream(response: &Response<Incoming>) -> bool {
    accept::is_media(response.headers().get(header::CONTENT_TYPE), accept::EVENT_STREAM)
}

fn broken_error(url: &Uri, error: &hyper::Error) -> Error {
    Error::Broken { url: url.clone(), detail: innermost_cause(error) }
}

// === impl LineReader ===

impl LineReader {
    /// Returns the next line, without its line break, or `None` at the end of the body.
    ///
    /// # Errors
    /// [`Error::Broken`] or [`Error::TooLarge`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let mut scanned = 0;
        loop {
            if let Some(offset) = memchr::memchr(b'\n', &self.buffer[scanned..]) {
                let mut line = self.buffer.split_to(scanned + offset + 1);
                line.truncate(scanned + offset);
                return Ok(Some(line.freeze()));
            }
            scanned = self.buffer.len();
            if scanned > MAX_MESSAGE {
                return Err(Error::TooLarge);
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|error| broken_error(&self.url, &error))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}

// === impl EventReader ===

impl EventReader {
    /// Returns the next event, or `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<SseEvent>, Error> {
        loop {
            if let Some(event) = self.decoder.next_event().map_err(|_| Error::TooLarge)? {
                return Ok(Some(event));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|error| broken_error(&self.url, &error))?;
            if let Ok(data) = frame.into_data() {
                self.decoder.feed(data);
            }
        }
    }
}
