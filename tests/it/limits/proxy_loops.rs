//! A proxy in front of itself.

use crate::{
    proxy::proxy_and_server::start,
    support::modern_client::{Client, soon},
};
use http::Method;
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Something that leads to an address which is known later, and how many connections it took there.
struct Detour {
    url: String,
    target: watch::Sender<Option<SocketAddr>>,
    taken: Arc<AtomicUsize>,
}

impl Detour {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("it is bound"));
        let (target, known) = watch::channel(None);
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        tokio::spawn(async move {
            while let Ok((mut one, _)) = listener.accept().await {
                // Enough to tell a loop, and not so many that the machine suffers.
                if count.fetch_add(1, Ordering::Relaxed) >= 200 {
                    return;
                }
                let mut known = known.clone();
                tokio::spawn(async move {
                    let target = known.wait_for(Option::is_some).await.ok().and_then(|target| *target);
                    let mut other =
                        TcpStream::connect(target.expect("it is known")).await.expect("it listens");
                    let _ = copy_bidirectional(&mut one, &mut other).await;
                });
            }
        });
        Self { url, target, taken }
    }

    fn lead_to(&self, addr: SocketAddr) {
        self.target.send_replace(Some(addr));
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_proxy_in_front_of_itself_reports_it_and_keeps_its_descriptors() {
    let detour = Detour::new().await;
    let proxy = start(&detour.url, &[], &["timeouts: { first_byte: 5s }"]);
    let addr = proxy.addresses[0];
    detour.lead_to(addr);
    let client = Client::new(addr);

    let answer = soon("an answer", client.ask("tools/list", json!({}))).await;
    assert!(
        answer.body.contains("loop: the request has passed") && answer.body.contains("`/mcp`"),
        "{}",
        answer.body
    );
    let call = soon("an answer", client.call("x").await.answer()).await;
    assert!(call.body.contains("loop: the request has passed"), "{}", call.body);
    let hello = json!({
        "jsonrpc": "2.0", "id": 7, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {} },
    });
    let legacy = client.with("mcp-protocol-version", "").with("mcp-method", "");
    let hello = soon("an answer", async {
        legacy.send_request(legacy.spelled("initialize", None, hello.to_string())).await.answer().await
    })
    .await;
    assert_eq!((hello.json()["id"].clone(), hello.status.as_u16()), (json!(7), 200), "{}", hello.body);
    assert!(hello.body.contains("loop: the request has passed"), "{}", hello.body);
    for path in ["/.well-known/oauth-protected-resource/mcp", "/mcp"] {
        let mut request = legacy.at(path).with("mcp-session-id", "s").spelled("", None, String::new());
        *request.method_mut() = Method::GET;
        let answer = soon("an answer", async { legacy.send_request(request).await.answer().await }).await;
        assert!(
            answer.body.contains("loop: the request has passed"),
            "{path}: {} {}",
            answer.status,
            answer.body
        );
    }
    assert!(detour.taken() < 12, "{} requests went round", detour.taken());
    let descriptors = fs::read_dir("/proc/self/fd").expect("there are some").count();
    assert!(descriptors < 120, "{descriptors}");
}

#[tokio::test]
async fn two_proxies_in_a_row_are_no_loop_and_three_in_a_ring_are_one() {
    let world = crate::proxy::proxy_and_server::ProxyAndServer::new().await;
    let near = start(&format!("http://{}/mcp", world.addr()), &[], &[]);
    let answer = Client::new(near.addresses[0]).ask("tools/list", json!({})).await;
    assert!(answer.result()["tools"].is_array(), "{}", answer.body);
    let via = world.server.message("initialize").await;
    let via = via.headers.get_all("via").iter().map(|line| line.to_str().expect("text").to_owned());
    let via: Vec<_> = via.collect();
    assert_eq!(via.len(), 2, "{via:?}");
    assert!(via.iter().all(|line| line.starts_with("1.1 deferral-")) && via[0] != via[1], "{via:?}");

    let detour = Detour::new().await;
    let far = start(&detour.url, &[], &[]);
    let middle = start(&format!("http://{}/mcp", far.addresses[0]), &[], &[]);
    let first = start(&format!("http://{}/mcp", middle.addresses[0]), &[], &[]);
    detour.lead_to(first.addresses[0]);
    let answer = soon("an answer", Client::new(first.addresses[0]).ask("tools/list", json!({}))).await;
    assert!(answer.body.contains("loop: the request has passed"), "{}", answer.body);
    assert!(detour.taken() < 5, "{}", detour.taken());
}
