//! One proxy that keeps running, in front of servers that are started, called and killed.
//!
//! With each reload all servers are others: those before have ended, and what they had must be gone. What the proxy has then is
//! compared with what it had the first time. It saves time, too: a server that was killed is started again after a second, then
//! after two, and so on; another one is at once.

use super::{
    super::{MARK, Proxy, arguments, has_variable, is_supervisor, memory, send},
    Chance, number,
};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::{
        legacy_server::PATIENCE,
        modern_client::{Answer, Client, Following, TASKS, soon},
    },
};
use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use std::{cell::Cell, fs, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/stdio/quick.sh");
/// Where the servers are. What the last few have started does not end with them.
const LANES: [&str; 16] = [
    "/a",
    "/b",
    "/c",
    "/d",
    "/e",
    "/f",
    "/g",
    "/h",
    "/i",
    "/j",
    "/k",
    "/helper/a",
    "/helper/b",
    "/helper/c",
    "/helper/d",
    "/setsid",
];
/// The variable by which the processes of a lane are known.
const LANE: &str = "DEFERRAL_TEST_LANE";
/// What callers declare: more sets than there may be processes of a server, so that they come and go.
const SETS: [&str; 4] = ["{}", r#"{"elicitation":{}}"#, r#"{"roots":{}}"#, r#"{"sampling":{}}"#];
/// What happens from one reload to the next.
const GENERATION: usize = 80;
/// Default number of generations that are compared with the first.
const USUAL: usize = 2;
/// Kilobytes that all of them together may add. Each has some fifty processes, which are read into 64 each, half as many
/// answers of 128, and a dozen kills, every other with 192 that wait to be written.
const MORE: usize = 3 << 10;
/// What a large answer has.
const LARGE: usize = 128 << 10;
/// What may come of a call whose process is killed.
const LOST: [i64; 2] = [-31001, -31002];
/// How long others have their turns before one who waits looks again.
const MOMENT: Duration = Duration::from_millis(20);

/// The proxy.
struct LongRunningProxy {
    proxy: Proxy,
    generation: Cell<u64>,
    /// What is still to happen in this generation.
    left: Cell<usize>,
    /// What it had open before anything happened.
    descriptors: usize,
}

/// One server of this generation, and what happens there.
struct Lane<'a> {
    world: &'a LongRunningProxy,
    path: &'static str,
    chance: Chance,
    was_killed: bool,
}

// === impl LongRunningProxy ===

impl LongRunningProxy {
    fn start() -> Self {
        let proxy = Proxy::of_file(&configuration(0));
        let descriptors = descriptors(&proxy);
        Self { proxy, generation: Cell::new(0), left: Cell::new(0), descriptors }
    }

    /// One generation, to its end: no process and no descriptor of it is left.
    async fn lives(&self) {
        let generation = self.generation.get();
        self.left.set(GENERATION);
        let seed = number("SEED").unwrap_or(1).wrapping_add(generation * 7919);
        let lanes = LANES.iter().zip(0..).map(|(&path, lane)| {
            let chance = Chance(seed.wrapping_add(lane * 104_729));
            Lane { world: self, path, chance, was_killed: false }.lives()
        });
        join_all(lanes).await;
        self.generation.set(generation + 1);
        self.proxy.goes_on_with(&configuration(generation + 1)).await;
        let is_over = || {
            let processes = self.proxy.below().len() + self.unreaped();
            (processes, descriptors(&self.proxy)) == (0, self.descriptors)
        };
        self.becomes(is_over).await;
    }

    /// Waits until it is so.
    async fn becomes(&self, so: impl Fn() -> bool) {
        let reached = async {
            while !so() {
                sleep(MOMENT).await;
            }
        };
        if timeout(PATIENCE, reached).await.is_err() {
            let (generation, memory) = (self.generation.get(), self.memory());
            let (below, unreaped, open) = (self.proxy.below(), self.unreaped(), descriptors(&self.proxy));
            panic!(
                "after {generation} generations: {below:?} below it and {unreaped} unreaped, {open} descriptors where there were {}, {memory} kB",
                self.descriptors
            );
        }
    }

    /// The proxy's own children that have ended, and that it has not waited for.
    fn unreaped(&self) -> usize {
        let has_ended = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
        };
        children(self.proxy.child.id()).iter().filter(|pid| has_ended(pid)).count()
    }

    /// In kilobytes, without what is in files, too.
    fn memory(&self) -> usize {
        memory(self.proxy.child.id(), "RssAnon:")
    }
}

// === impl Lane ===

impl Lane<'_> {
    async fn lives(mut self) {
        while self.world.left.get() > 0 {
            self.world.left.set(self.world.left.get() - 1);
            let declared = self.chance.one(&SETS);
            let client = self.client().declaring(serde_json::from_str(declared).expect("JSON"));
            match self.chance.of(13) {
                0..4 => assert_eq!(self.calls(&client, "large").await.text().len(), LARGE),
                4 | 5 => self.defers(&client).await,
                6 => drop(at_work(&client).await),
                7 | 8 => self.is_asked(&client).await,
                9 => self.is_served_in_a_session(declared).await,
                // It is started again after a second; another time it would be after two.
                _ if self.was_killed => {}
                _ => self.is_killed(&client).await,
            }
        }
    }

    /// Asks until it is served, where its process may have been killed.
    async fn served(&self, ask: impl AsyncFn() -> Answer) -> Answer {
        let served = async {
            loop {
                let answer = ask().await;
                if !self.is_lost(&answer.json()) {
                    return answer;
                }
            }
        };
        soon("it is served again", served).await
    }

    /// The same with a call.
    async fn calls(&self, client: &Client, tool: &str) -> Answer {
        self.served(async || client.call(tool).await.answer().await).await
    }

    /// Whether a call was lost with its process.
    fn is_lost(&self, answer: &Value) -> bool {
        let is_lost = answer["error"]["code"].as_i64().is_some_and(|code| LOST.contains(&code));
        assert!(self.was_killed || !is_lost, "nobody has killed it: {answer}");
        is_lost
    }

    fn client(&self) -> Client {
        self.world.proxy.client().at(self.path)
    }

    /// A call that becomes a task, which is waited for, cancelled or forgotten.
    async fn defers(&mut self, client: &Client) {
        let client = client.declaring(json!({ "extensions": { TASKS: {} } }));
        let answer = self.calls(&client, "slow").await.result();
        let Some(task) = answer["taskId"].as_str() else { return };
        match self.chance.of(3) {
            0 => {
                let ended = self.ended(&client, task).await;
                assert!(ended["status"] == "completed" || self.is_lost(&ended), "{ended}");
            }
            1 => assert_eq!(client.of_task("tasks/cancel", task).await.status, 200),
            _ => {}
        }
    }

    /// Asks for a task until it has ended, and leaves others their turns meanwhile.
    async fn ended(&self, client: &Client, task: &str) -> Value {
        let ended = async {
            loop {
                let now = client.task(task).await;
                if now["status"] != "working" {
                    return now;
                }
                sleep(MOMENT).await;
            }
        };
        soon("the task ends", ended).await
    }

    /// An input request that is answered or abandoned.
    async fn is_asked(&mut self, client: &Client) {
        let client = client.declaring(json!({ "elicitation": {} }));
        let round = self.calls(&client, "ask").await.result();
        // It is refused where it may be of a call that was left.
        if round["resultType"] != "input_required" || self.chance.of(2) == 0 {
            return;
        }
        let key = round["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("a question");
        let mut call = arguments("ask", json!({}));
        call["requestState"] = round["requestState"].clone();
        call["inputResponses"] = json!({ key: { "action": "accept", "content": {} } });
        let answer = client.ask("tools/call", call).await;
        // On a machine that is busy it may come too late.
        let is_late = answer.json()["error"]["code"] == -32602;
        assert!(is_late || self.is_lost(&answer.json()) || answer.text() == "asked", "{answer:?}");
    }

    /// A client of an older revision, which ends its session or leaves it.
    async fn is_served_in_a_session(&mut self, declared: &str) {
        let older = LegacyClient::new(self.world.proxy.addr);
        let hello = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{declared},"clientInfo":{{"name":"c","version":"1"}}}}}}"#
        );
        let posts = async |client: &LegacyClient, message: &str| {
            let post = async || client.send(Method::POST, self.path, message).await.answer().await;
            self.served(post).await
        };
        let answer = posts(&older, &hello).await;
        let older = older.within(answer.header("mcp-session-id"));
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"large"}}"#;
        assert_eq!(posts(&older, call).await.text().len(), LARGE);
        if self.chance.of(2) == 0 {
            assert_eq!(older.send(Method::DELETE, self.path, "").await.answer().await.status, 200);
        }
    }

    /// A process or its supervisor, with calls in hand or without; then it is started again.
    async fn is_killed(&mut self, client: &Client) {
        self.was_killed = true;
        let in_hand = match self.chance.of(2) {
            0 => Some(in_hand(client).await),
            _ => None,
        };
        let proxy = &self.world.proxy;
        let lane = proxy.below().into_iter().filter(|pid| has_variable(*pid, LANE, self.path));
        let (supervisors, others): (Vec<_>, Vec<_>) = lane.partition(|pid| is_supervisor(*pid));
        // What has left the group of its command is out of reach without its supervisor.
        let is_supervisors = self.path != "/setsid" && self.chance.of(2) == 0;
        let meant = if is_supervisors { supervisors } else { others };
        if !meant.is_empty() {
            send("-KILL", self.chance.one(&meant));
        }
        if let Some((slow, large)) = in_hand {
            let is_over = || slow.is_over();
            self.world.becomes(is_over).await;
            for answer in [slow.messages().pop().expect("an answer"), large.await.expect("it ends").json()] {
                assert!(self.is_lost(&answer) || answer["result"].is_object(), "{answer}");
            }
        }
        self.calls(client, "x").await;
    }
}

/// A call that its server is at. Its client leaves when this is dropped.
async fn at_work(client: &Client) -> Following {
    let params = json!({ "name": "slow", "_meta": { "progressToken": 1 } });
    let slow = client.send("tools/call", params).await.follow();
    let begun = async {
        while slow.messages().is_empty() {
            sleep(MOMENT).await;
        }
    };
    soon("it is at the call", begun).await;
    slow
}

/// A call that its server is at, and one that waits to be read, as there is more of it than a pipe holds.
async fn in_hand(client: &Client) -> (Following, JoinHandle<Answer>) {
    let slow = at_work(client).await;
    let large = arguments("x", json!({ "a": "x".repeat(192 << 10) }));
    let large = tokio::spawn(client.send("tools/call", large).await.answer());
    (slow, large)
}

fn children(pid: u32) -> Vec<u32> {
    let of_threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = of_threads.flat_map(|thread| fs::read_to_string(thread.path().join("children")));
    let pids: Vec<_> =
        children.map(|pids| pids.split(' ').flat_map(str::parse).collect::<Vec<_>>()).collect();
    pids.concat()
}

fn descriptors(proxy: &Proxy) -> usize {
    fs::read_dir(format!("/proc/{}/fd", proxy.child.id())).expect("it runs").count()
}

/// All servers are others in another generation.
fn configuration(generation: u64) -> String {
    let limits = "{ tasks: 100000, tasks_per_principal: 100000, polls_per_second: 100000 }";
    let mut text = format!("listen: 127.0.0.1:0\nadmin: off\ndrain: 10ms\nlimits: {limits}\nroutes:\n");
    for path in LANES {
        let env = format!("{{ {LANE}: {path}, GENERATION: '{generation}' }}");
        let upstream = format!(
            "{{ command: [sh, '{SERVER}', {path}], instances: 2, inherit_env: [{MARK}], env: {env} }}"
        );
        text.push_str(&format!(
            "- {{ path: {path}, defer: {{ after: 50ms }}, questions: {{ park: 200ms }}, upstream: {upstream} }}\n"
        ));
    }
    text
}

#[tokio::test]
async fn a_proxy_that_goes_on_through_all_of_it_has_no_more_in_the_end_than_it_had() {
    let world = LongRunningProxy::start();
    world.lives().await;
    let before = world.memory();
    let generations = number("CHAOS").map_or(USUAL, |many| (many as usize).div_ceil(GENERATION));
    for _ in 0..generations {
        world.lives().await;
        let is_like_before = || world.memory() <= before + MORE;
        world.becomes(is_like_before).await;
    }
    world.proxy.stops().await;
}
