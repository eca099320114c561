//! What everything is measured by: the least a proxy on hyper can do. It forwards heads and bodies
//! as they come, over pooled connections, and reads neither.

use super::Failure;
use http::{Request, Response, StatusCode, Uri, uri};
use http_body_util::{Either, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
};
use tokio::net::TcpListener;

/// Serves until the process is ended.
pub(crate) async fn serve(upstream: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    let authority: uri::Authority = upstream.to_string().parse()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (client, authority) = (client.clone(), authority.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| forward(client.clone(), authority.clone(), request));
            // A connection that breaks is its client's affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Body = Either<Incoming, Empty<bytes::Bytes>>;

async fn forward(
    client: Client<HttpConnector, Incoming>,
    authority: uri::Authority,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut parts = uri::Parts::default();
    parts.scheme = Some(uri::Scheme::HTTP);
    parts.authority = Some(authority);
    parts.path_and_query = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from_parts(parts).expect("it has a scheme, an authority and a path");
    Ok(match client.request(request).await {
        Ok(response) => response.map(Either::Left),
        Err(_) => {
            let mut response = Response::new(Either::Right(Empty::new()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    })
}
