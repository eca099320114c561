//! A server over standard input and output, and what a proxy in front of it is measured by: the least that
//! carries calls over HTTP to the lines of a process and back.
//!
//! Both know the calls of this bench alone: the relay finds the id of a message by looking for its key, and
//! reads nothing else.

use super::{
    Failure,
    upstream::{INITIALIZED, Params, TOOLS, result, success},
};
use bytes::Bytes;
use deferral::internals::protocol::{Frame, Kind, Method};
use http::{Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use std::{
    collections::HashMap,
    env, io,
    net::Ipv4Addr,
    ops::Range,
    os::fd::AsFd,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter},
    net::{TcpListener, unix::pipe},
    process::Command,
    sync::{mpsc, oneshot},
    time::sleep,
};

/// The relay, and who waits for which answer.
struct Relay {
    lines: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>>,
    next: AtomicU64,
}

/// Where the id of a message begins.
const ID: &[u8] = b"\"id\":";

/// Answers the calls that come on standard input, until it ends. The tool `held` says how many calls of `slow` wait.
pub(crate) async fn serve() -> Result<(), Failure> {
    let lines = write(pipe::Sender::from_owned_fd(io::stdout().as_fd().try_clone_to_owned()?)?);
    let held = Arc::new(AtomicUsize::new(0));
    let input = pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut input = BufReader::new(input).lines();
    while let Some(line) = input.next_line().await? {
        let frame = Frame::parse(line.into())?;
        let Kind::Request { id, method, params } = frame.kind() else { continue };
        let params = params.as_ref().and_then(|params| serde_json::from_slice::<Params>(params).ok());
        let answer = match (method, params) {
            (Method::Initialize, _) => success(id, INITIALIZED),
            (Method::ToolsList, _) => success(id, TOOLS),
            (Method::ToolsCall, Some(Params { name, arguments })) if name == "slow" => {
                held.fetch_add(1, Ordering::Relaxed);
                let (answer, lines) = (success(id, &result()), lines.clone());
                tokio::spawn(async move {
                    sleep(Duration::from_secs_f64(arguments.seconds)).await;
                    let _ = lines.send(answer.into());
                });
                continue;
            }
            (Method::ToolsCall, Some(Params { name, .. })) if name == "held" => {
                let count = held.load(Ordering::Relaxed);
                success(id, &format!(r#"{{"content":[{{"type":"text","text":"held {count}."}}]}}"#))
            }
            _ => success(id, &result()),
        };
        lines.send(answer.into())?;
    }
    Ok(())
}

/// Serves until the process is ended.
pub(crate) async fn relay() -> Result<(), Failure> {
    let mut server = Command::new(env::current_exe()?)
        .arg("lines")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let relay = Arc::new(Relay {
        lines: write(server.stdin.take().expect("it is piped")),
        waiting: Arc::default(),
        next: AtomicU64::new(1),
    });
    tokio::spawn(read(server.stdout.take().expect("it is piped"), Arc::clone(&relay.waiting)));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let relay = Arc::clone(&relay);
        tokio::spawn(async move {
            let service = service_fn(move |request| Arc::clone(&relay).answer(request));
            // A connection that breaks is its client's affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

// === impl Relay ===

impl Relay {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
        let body = request.into_body().collect().await?.to_bytes();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().expect("nobody panics").insert(number, sender);
        let (id, _) = id(&body).ok_or("a call without an id")?;
        self.lines.send([&body[..id.start], number.to_string().as_bytes(), &body[id.end..]].concat())?;
        let mut response = Response::new(Full::from(answer.await?));
        response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        Ok(response)
    }
}

/// Hands each answer to whoever waits for it. All calls of this bench have the id 1.
async fn read(
    from: impl AsyncRead + Unpin,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>>,
) -> Result<(), Failure> {
    let mut lines = BufReader::with_capacity(64 << 10, from);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).await? > 0 {
        let (at, number) = id(&line).ok_or("an answer without an id")?;
        let waits = waiting.lock().expect("nobody panics").remove(&number);
        if let Some(waits) = waits {
            let _ = waits.send([&line[..at.start], b"1", &line[at.end..]].concat());
        }
        line.clear();
    }
    Ok(())
}

/// Where the id of a message stands, and what it is.
fn id(message: &[u8]) -> Option<(Range<usize>, u64)> {
    let start = memmem::find(message, ID)? + ID.len();
    let digits = message[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let at = start..start + digits;
    Some((at.clone(), std::str::from_utf8(&message[at]).ok()?.parse().ok()?))
}

/// Writes lines, those that are there in one go.
fn write(to: impl AsyncWrite + Send + Unpin + 'static) -> mpsc::UnboundedSender<Vec<u8>> {
    let (sender, mut lines) = mpsc::unbounded_channel::<Vec<u8>>();
    tokio::spawn(async move {
        let mut to = BufWriter::with_capacity(64 << 10, to);
        while let Some(mut line) = lines.recv().await {
            loop {
                line.push(b'\n');
                to.write_all(&line).await?;
                match lines.try_recv() {
                    Ok(next) => line = next,
                    Err(_) => break,
                }
            }
            to.flush().await?;
        }
        Ok::<_, io::Error>(())
    });
    sender
}
