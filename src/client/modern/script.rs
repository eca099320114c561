//! A server for unit tests with scripted responses.

use crate::protocol::accept;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;

/// A server with scripted responses, one for each request.
pub(super) struct ScriptedServer {
    pub(super) url: Uri,
    requests: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
}

pub(super) const JSON: &str = accept::JSON;
pub(super) const SSE: &str = accept::EVENT_STREAM;

impl ScriptedServer {
    /// Starts a server that answers with these responses in turn: status, media type and body, in which `$ID`
    /// becomes the id of the request.
    pub(super) async fn new(responses: &[(u16, &'static str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let answers: VecDeque<_> =
            responses.iter().map(|(status, media, body)| (*status, *media, (*body).to_owned())).collect();
        let answers = Arc::new(Mutex::new(answers));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let (status, media, text) =
                            answers.lock().unwrap().pop_front().expect("an answer is left");
                        let text = text.replace("$ID", &body["id"].to_string());
                        log.lock().unwrap().push((parts.headers, body));
                        Ok::<_, Infallible>(
                            Response::builder()
                                .status(status)
                                .header("content-type", media)
                                .body(Full::new(Bytes::from(text)))
                                .unwrap(),
                        )
                    }
                });
                tokio::spawn(async move {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { url, requests }
    }

    /// Returns the headers and bodies of all requests so far.
    pub(super) fn requests(&self) -> Vec<(HeaderMap, Value)> {
        self.requests.lock().unwrap().clone()
    }
}
