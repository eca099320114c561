//! Processes on paused time; the test is the process and its supervisor: `starts`, `turns` in a shared
//! process, its end (`ends`), and processes kept for listeners (`listened`).

mod ends;
mod listened;
mod starts;
mod turns;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::{
    io::{
        AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadBuf, Repeat, duplex,
        repeat,
    },
    sync::mpsc,
    task::{JoinHandle, yield_now},
};

use super::{
    ProcessIo, ServerCommand, StdioUpstream, message_line::MessagePipe, supervisor::SupervisorReport,
};
use crate::{
    dialect::{Credentials, Principal, modern},
    protocol::{Capabilities, Method},
    runtime::{Network, SystemClock},
    upstream::{
        CallError, CallerIdentity, Config, Deferral, OutgoingCall, Upstream, UpstreamEvent, UpstreamEvents,
    },
};

/// A server, and a receiver of its started processes.
struct World {
    server: StdioUpstream,
    started: mpsc::UnboundedReceiver<Process>,
    clock: SystemClock,
}

/// Standard error of a process.
type Stderr = Box<dyn AsyncRead + Send + Unpin>;

/// A stream without end, which counts the bytes read.
struct Endless {
    bytes: Repeat,
    taken: Arc<AtomicUsize>,
}

/// The process's ends of its streams, for the test.
struct Process {
    stdin: Lines<BufReader<DuplexStream>>,
    stdout: DuplexStream,
    stderr: DuplexStream,
    control: DuplexStream,
}

const MUTE: &str = "{}";
const ASKABLE: &str = r#"{"elicitation":{}}"#;
const MORE: &str = r#"{"elicitation":{},"roots":{},"sampling":{}}"#;
/// Capacity of each pipe.
const PIPE: usize = 1 << 12;

impl World {
    fn new() -> Self {
        Self::with(|_, _| {})
    }

    fn with(change: impl FnOnce(&mut ServerCommand, &mut Config)) -> Self {
        Self::of(change, |stderr| Box::new(stderr))
    }

    /// A server whose processes write an endless line to standard error, and the number of bytes read of it.
    fn with_endless_stderr() -> (Self, Arc<AtomicUsize>) {
        let taken = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&taken);
        let endless = move |_| -> Stderr { Box::new(Endless { bytes: repeat(b'x'), taken: count.clone() }) };
        (Self::of(|_, _| {}, endless), taken)
    }

    fn of(
        change: impl FnOnce(&mut ServerCommand, &mut Config),
        stderr: impl Fn(DuplexStream) -> Stderr + Send + Sync + 'static,
    ) -> Self {
        let (sender, started) = mpsc::unbounded_channel();
        let spawn = move |_: &ServerCommand| {
            let [input, output, remarks, control] = [(); 4].map(|()| duplex(PIPE));
            let stdin = BufReader::new(input.1).lines();
            let process = Process { stdin, stdout: output.1, stderr: remarks.1, control: control.1 };
            let _ = sender.send(process);
            Ok(ProcessIo {
                stdin: MessagePipe::new(input.0),
                stdout: Box::new(output.0),
                stderr: stderr(remarks.0),
                control: Box::new(control.0),
                reaped: std::future::ready(false).boxed(),
            })
        };
        let (mut command, mut config) = (ServerCommand::new(vec!["server".to_owned()]), Config::default());
        change(&mut command, &mut config);
        let server = StdioUpstream::with_spawn(Box::new(spawn), "/mcp", command, config, &Network::System);
        Self { server: server.expect("a runtime is entered"), started, clock: SystemClock::new() }
    }

    async fn next(&mut self) -> Process {
        self.started.recv().await.expect("a process")
    }

    /// Next started process, after its handshake.
    async fn next_initialized(&mut self) -> Process {
        let mut process = self.next().await;
        process.complete_handshake().await;
        process
    }

    /// A call of a caller that makes no other.
    fn call(&self, id: u64, capabilities: &'static str) -> Call {
        self.call_with(id, capabilities, "")
    }

    fn call_with(&self, id: u64, capabilities: &'static str, argument: &str) -> Call {
        self.start_call(Principal::derive(&[&id.to_be_bytes()]), id, capabilities, argument)
    }

    fn call_of(&self, principal: Principal, id: u64, capabilities: &'static str) -> Call {
        self.start_call(principal, id, capabilities, "")
    }

    /// A call, polled to its end in a task.
    fn start_call(&self, principal: Principal, id: u64, capabilities: &'static str, argument: &str) -> Call {
        let params = json!({ "name": "t", "arguments": { "a": argument } }).to_string();
        self.send(outgoing(principal, id, capabilities, &params))
    }

    /// A call that may become a task.
    fn call_deferred(&self, id: u64, capabilities: &'static str, deferral: &Deferral) -> Call {
        let call = outgoing(Principal::derive(&[&id.to_be_bytes()]), id, capabilities, r#"{"name":"t"}"#);
        self.send(OutgoingCall { deferral: Some(deferral.clone()), ..call })
    }

    fn send(&self, outgoing: OutgoingCall) -> Call {
        let mut replies: UpstreamEvents = self.server.call(outgoing);
        let (said, heard) = mpsc::unbounded_channel();
        let work = tokio::spawn(async move {
            while let Some(event) = replies.next().await {
                let _ = said.send(event);
            }
        });
        Call { heard, work }
    }

    /// Whether all started processes have been taken by the test.
    fn has_no_start(&mut self) -> bool {
        self.started.try_recv().is_err()
    }
}

fn outgoing(principal: Principal, id: u64, capabilities: &'static str, params: &str) -> OutgoingCall {
    let capabilities = Capabilities::read(Bytes::from_static(capabilities.as_bytes())).expect("an object");
    let caller = CallerIdentity {
        principal,
        credentials: Credentials::default(),
        capabilities: Arc::new(capabilities),
        client_info: Default::default(),
    };
    let call = Arc::new(modern::build_call(&Method::ToolsCall, params));
    OutgoingCall { id, call, caller, deferral: None }
}

/// Result of a future within a number of polls: while other tasks are busy, paused time does not advance.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    let turns = pin!(async {
        for _ in 0..1_000 {
            yield_now().await;
        }
    });
    tokio::select! {
        it = what => it,
        () = turns => panic!("the others had their turns, and it did not come"),
    }
}

impl AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.bytes).poll_read(cx, buf))?;
        self.taken.fetch_add(buf.filled().len(), Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

struct Call {
    heard: mpsc::UnboundedReceiver<UpstreamEvent>,
    work: JoinHandle<()>,
}

impl Call {
    async fn next(&mut self) -> UpstreamEvent {
        self.heard.recv().await.expect("it goes on")
    }

    async fn lost(&mut self) -> CallError {
        match self.next().await {
            UpstreamEvent::Lost(lost) => lost,
            other => panic!("it is lost, not {other:?}"),
        }
    }

    async fn is_answered(&mut self) {
        let event = self.next().await;
        assert!(matches!(event, UpstreamEvent::Final(_)), "{event:?}");
    }
}

impl Process {
    async fn reads(&mut self) -> Value {
        let line = self.stdin.next_line().await.expect("it can be read").expect("it is open");
        assert!(
            !line.contains(['\r', '\u{85}', '\u{2028}', '\u{2029}']),
            "some readers end a line in it: {line:?}"
        );
        serde_json::from_str(&line).expect("JSON")
    }

    async fn has_no_more_to_read(&mut self) {
        assert_eq!(self.stdin.next_line().await.expect("it can be read"), None);
    }

    async fn write(&mut self, text: &str) {
        self.stdout.write_all(text.as_bytes()).await.expect("it is read");
    }

    async fn answers(&mut self, id: u64) {
        self.write(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[]}}}}\n")).await;
    }

    async fn send_request(&mut self, id: &str) {
        let question = json!({
            "jsonrpc": "2.0", "id": id, "method": "elicitation/create",
            "params": { "message": "?", "requestedSchema": { "type": "object" } },
        });
        self.write(&format!("{question}\n")).await;
    }

    async fn complete_handshake(&mut self) -> Value {
        let hello = self.reads().await;
        assert_eq!(hello["method"], "initialize");
        self.accept_initialize(&hello).await;
        hello
    }

    /// Answers this request, and reads the end of the handshake.
    async fn accept_initialize(&mut self, initialize: &Value) {
        let result = json!({
            "protocolVersion": initialize["params"]["protocolVersion"], "capabilities": { "tools": {} },
            "serverInfo": { "name": "process", "version": "1" },
        });
        self.write(&format!("{}\n", json!({ "jsonrpc": "2.0", "id": initialize["id"], "result": result })))
            .await;
        assert_eq!(self.reads().await["method"], "notifications/initialized");
    }

    async fn refuses(&mut self, error: &Value) {
        let hello = self.reads().await;
        assert_eq!(hello["method"], "initialize");
        self.write(&format!("{}\n", json!({ "jsonrpc": "2.0", "id": hello["id"], "error": error }))).await;
    }

    /// Id of the next call sent to the process.
    async fn read_call(&mut self) -> u64 {
        let call = self.reads().await;
        assert_eq!(call["method"], "tools/call", "{call}");
        call["id"].as_u64().expect("a number")
    }

    async fn ends(mut self, how: &str) {
        let report = SupervisorReport::Ended { status: how.to_owned() }.to_line();
        self.control.write_all(report.as_bytes()).await.expect("it is heard");
    }
}
