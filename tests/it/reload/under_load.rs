//! Many reloads, while clients of both eras call.

use super::NEVER;
use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ALWAYS, ProxyAndServer, written},
    support::{
        legacy_server::{Canned, LegacyServer, Options},
        modern_client::{Client, Kept, Version, soon},
    },
};
use deferral::internals::app;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::json;
use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::{net::TcpStream, sync::Mutex, task::JoinHandle};

/// Answers every call at once.
async fn quick() -> LegacyServer {
    let answering = Options { tools: Some(json!([])), ..Options::default() }.hook(|seen| {
        (seen.method() == "tools/call").then(|| {
            let result = json!({ "content": [{ "type": "text", "text": "done" }] });
            Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result }))
        })
    });
    LegacyServer::start(answering).await
}

/// Clients that call until they are stopped, and panic where anything fails.
struct Load {
    over: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn begin() -> Self {
        Self { over: Arc::default(), calls: Arc::default(), clients: Vec::new() }
    }

    fn add<C, F>(&mut self, client: C, call: impl Fn(Arc<C>, u64) -> F + Send + 'static)
    where
        C: Send + Sync + 'static,
        F: Future<Output = ()> + Send,
    {
        let (over, calls, client) = (Arc::clone(&self.over), Arc::clone(&self.calls), Arc::new(client));
        self.clients.push(tokio::spawn(async move {
            for n in 10.. {
                call(Arc::clone(&client), n).await;
                calls.fetch_add(1, Relaxed);
                if over.load(Relaxed) {
                    return;
                }
            }
        }));
    }

    /// Lets them make so many calls more.
    async fn goes_on(&self, more: usize) {
        let until = self.calls.load(Relaxed) + more;
        let done = async {
            while self.calls.load(Relaxed) < until {
                assert!(!self.clients.iter().any(JoinHandle::is_finished), "a client has failed");
                tokio::task::yield_now().await;
            }
        };
        soon("calls", done).await;
    }

    async fn ends(self) -> usize {
        self.over.store(true, Relaxed);
        for client in self.clients {
            client.await.expect("nothing failed");
        }
        self.calls.load(Relaxed)
    }
}

async fn asks(client: Arc<Client>, _: u64) {
    assert_eq!(client.call("t").await.answer().await.text(), "done");
}

async fn takes_tasks(client: Arc<Client>, _: u64) {
    let answer = client.call("t").await.answer().await.result();
    if answer["resultType"] == "task" {
        let task = answer["taskId"].as_str().expect("an id");
        let ended = client.ended(task).await;
        assert_eq!(ended["result"]["content"][0]["text"], "done", "{ended:#}");
    } else {
        assert_eq!(answer["content"][0]["text"], "done", "{answer:#}");
    }
}

/// One call after the other, on one connection for as long as that is left open.
async fn on_a_connection(kept: Arc<Mutex<Kept>>, _: u64) {
    let answer = kept.lock().await.ask("tools/call", json!({ "name": "t", "arguments": {} })).await;
    assert_eq!(answer.text(), "done");
}

async fn in_session(client: Arc<LegacyClient>, n: u64) {
    assert_eq!(client.call(n).await.answer().await.text(), "done");
}

#[tokio::test]
async fn under_load_no_call_fails_no_task_is_lost_and_what_is_broken_changes_nothing() {
    let servers = [quick().await, quick().await];
    // A session at a former server ends after this: here none does, however slow the machine.
    let drain = "drain: 1h";
    let top = [drain, "limits: { tasks: 100000, tasks_per_principal: 100000, polls_per_second: 100000 }"];
    let world = app::start(written(&servers[0].url(), &[ALWAYS], &top)).expect("it starts");
    let mut world = ProxyAndServer { server: quick().await, proxy: world };
    let mut load = Load::begin();
    for _ in 0..2 {
        load.add(world.client(), asks);
        load.add(world.tasker(), takes_tasks);
        load.add(LegacyClient::new(world.addr()).hello().await, in_session);
        load.add(Mutex::new(world.client().over(Version::Http2).kept().await), on_a_connection);
    }
    let mut broken = 0;
    for n in 0..200 {
        load.goes_on(6).await;
        let (server, mode) = (&servers[n / 3 % 2], if n % 2 == 0 { NEVER } else { ALWAYS });
        let limits = format!(
            "limits: {{ tasks: {}, tasks_per_principal: 100000, polls_per_second: 100000, calls: {} }}",
            50_000 + n,
            500 + n
        );
        world.proxy.reload(written(&server.url(), &[mode], &[drain, &limits])).expect("it is right");
        if n % 4 == 0 {
            let missing = "tls: { cert: none.pem, key: none.pem }";
            world
                .proxy
                .reload(written(&server.url(), &[mode], &[missing]))
                .expect_err("there is no such file");
            broken += 1;
        }
    }
    load.goes_on(6).await;
    assert_eq!(broken, 50);
    assert!(load.ends().await >= 1200);
    let called: usize = servers.iter().map(|server| server.messages("tools/call")).sum();
    assert!(called >= 1200);
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn while_certificates_change_no_handshake_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let pairs = [("front/cert.pem", "front/key.pem"), ("support/tls/certificate.pem", "support/tls/key.pem")];
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let put = |n: usize| {
        let (from_cert, from_key) = pairs[n % 2];
        std::fs::copy(files.join(from_cert), &cert).expect("it can be copied");
        std::fs::copy(files.join(from_key), &key).expect("it can be copied");
    };
    put(0);
    let server = quick().await;
    let tls = format!("tls: {{ cert: '{}', key: '{}' }}", cert.display(), key.display());
    let config = || written(&server.url(), &[NEVER], &[&tls]);
    let mut proxy = app::start(config()).expect("it starts");
    let mut load = Load::begin();
    let connector = trusting(&files);
    for _ in 0..2 {
        let (addr, connector) = (proxy.addresses[0], connector.clone());
        load.add(addr, move |addr, _| shakes_hands(*addr, connector.clone()));
    }
    let mut seen = Vec::new();
    for n in 1..=50 {
        load.goes_on(2).await;
        put(n);
        let changed = proxy.reload(config()).expect("it is right").changed;
        assert_eq!(changed.len(), 2, "{changed:?}");
        let now = shown(proxy.addresses[0], &connector).await;
        assert!(seen.last() != Some(&now), "the new certificate is shown from then on");
        seen.push(now);
    }
    load.ends().await;
}

/// Trusts both certificates.
fn trusting(files: &Path) -> tokio_rustls::TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    for file in ["front/cert.pem", "support/tls/authority.pem"] {
        let root = CertificateDer::from_pem_file(files.join(file)).expect("a certificate");
        roots.add(root).expect("it is one");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the defaults are fine")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

async fn shakes_hands(addr: SocketAddr, connector: tokio_rustls::TlsConnector) {
    shown(addr, &connector).await;
}

/// The certificate that is shown at this moment.
async fn shown(addr: SocketAddr, connector: &tokio_rustls::TlsConnector) -> CertificateDer<'static> {
    let socket = TcpStream::connect(addr).await.expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = connector.connect(name, socket).await.expect("a handshake");
    stream.get_ref().1.peer_certificates().expect("one is shown")[0].clone().into_owned()
}
