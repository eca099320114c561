//! Many concurrent callers: each gets only the input requests of its own call, although the server's requests name no call.

use super::asking_server_and_client::{Client, Setup, accept, everything, form, with_tasks};
use crate::support::legacy_server::{Call, LegacyServer, PATIENCE};
use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

const CALLERS: u64 = 50;
const QUESTIONS: u64 = 4;
/// So many questions must be open at one moment.
const AT_ONCE: usize = 10;
const AFTER: &str = "defer: { after: 60ms }";

/// A number that looks random and is the same in each run (splitmix64).
fn random(seed: u64, caller: u64, nth: u64) -> u64 {
    let mut z = (seed << 40 | caller << 20 | nth).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn principal(caller: u64) -> &'static str {
    ["alice", "bob"][(caller % 2) as usize]
}

/// What only this caller is asked.
fn secret(caller: u64, question: u64) -> String {
    format!("{}/{caller}/{question}?", principal(caller))
}

/// What only this caller answers.
fn answer(caller: u64, question: u64) -> String {
    format!("<{}>", secret(caller, question))
}

/// How many questions are open, and how many were at most.
#[derive(Clone, Copy, Default)]
struct Open {
    now: usize,
    most: usize,
}

struct Server {
    legacy: LegacyServer,
    seed: u64,
    open: watch::Sender<Open>,
    /// How many calls each session has served.
    served: Mutex<HashMap<String, u64>>,
}

// === impl Server ===

impl Server {
    /// Serves one call: asks at random moments, one thing or two at a time, on the GET stream.
    async fn serve(&self, call: Call) {
        let caller = call.seen.json["params"]["arguments"]["caller"].as_u64().expect("a number");
        assert_eq!(call.seen.header("authorization"), Some(&*format!("Bearer {}", principal(caller))));
        let own = self.legacy.listener(call.session()).await;
        // Each session counts for itself, as servers do: ids are the same in all of them.
        let first_id = {
            let mut served = self.served.lock().expect("nothing panics with a lock");
            let served = served.entry(call.session().to_owned()).or_default();
            *served += 1;
            (*served - 1) * QUESTIONS
        };
        let mut question = 0;
        while question < QUESTIONS {
            sleep(Duration::from_millis(random(self.seed, caller, question) % 100)).await;
            let pair =
                random(self.seed, caller, 100 + question).is_multiple_of(3) && question + 1 < QUESTIONS;
            let asked = question..question + 1 + u64::from(pair);
            question = asked.end;
            for number in asked.clone() {
                let mut message = form(&secret(caller, number));
                message["jsonrpc"] = json!("2.0");
                message["id"] = json!(first_id + number);
                self.open.send_modify(|open| {
                    open.now += 1;
                    open.most = open.most.max(open.now);
                });
                own.send(&message);
            }
            for number in asked {
                let session = call.session();
                let theirs = |seen: &crate::support::legacy_server::Seen| {
                    seen.answers(&json!(first_id + number)) && seen.session() == session
                };
                let seen = self.legacy.seen(theirs).await;
                assert_eq!(seen.json["result"], accept(&answer(caller, number)), "{}", seen.json);
                assert_eq!(self.legacy.count(theirs), 1, "answered once");
                assert_eq!(seen.header("authorization"), Some(&*format!("Bearer {}", principal(caller))));
                self.open.send_modify(|open| open.now -= 1);
            }
        }
        call.says(&format!("{caller} is done"));
    }
}

/// One caller: a single call, whatever it is answered with.
struct Caller {
    client: Client,
    number: u64,
    seed: u64,
    open: watch::Receiver<Open>,
    /// The keys it was ever asked under.
    keys: BTreeSet<String>,
}

// === impl Caller ===

impl Caller {
    /// Thinks about its questions; the first time until many others are asked something, too.
    async fn answers(&mut self, asked: &Value) -> Value {
        self.open.wait_for(|open| open.most >= AT_ONCE).await.expect("the server runs");
        let mut answers = Map::new();
        for (key, request) in asked.as_object().expect("questions") {
            let said = request["params"]["message"].as_str().expect("words");
            let number = (0..QUESTIONS).find(|number| said == secret(self.number, *number));
            let number = number.unwrap_or_else(|| panic!("{} was asked {said}", self.number));
            assert!(self.keys.insert(key.clone()), "{key} is used again");
            answers.insert(key.clone(), accept(&answer(self.number, number)));
        }
        let nth = 200 + self.keys.len() as u64;
        sleep(Duration::from_millis(random(self.seed, self.number, nth) % 80)).await;
        Value::Object(answers)
    }

    async fn calls(mut self) -> bool {
        // No two calls of a principal are told apart by what they say of themselves.
        let tool = if self.number.is_multiple_of(5) { "always" } else { "auto" };
        let plain = json!({ "name": tool, "arguments": { "caller": self.number } });
        let mut params = plain.clone();
        let result = loop {
            let result = self.client.ask("tools/call", params).await.result();
            if result["resultType"] != "input_required" {
                break result;
            }
            params = plain.clone();
            params["inputResponses"] = self.answers(&result["inputRequests"]).await;
            params["requestState"] = result["requestState"].clone();
        };
        let is_task = result["resultType"] == "task";
        let result = if is_task { self.follows(&result["taskId"]).await } else { result };
        assert_eq!(result["content"][0]["text"], format!("{} is done", self.number));
        assert_eq!(self.keys.len() as u64, QUESTIONS, "each question was shown once");
        is_task
    }

    async fn follows(&mut self, task: &Value) -> Value {
        loop {
            sleep(Duration::from_millis(5)).await;
            let mut found = self.client.ask("tasks/get", json!({ "taskId": task })).await.result();
            match found["status"].as_str().expect("a status") {
                "working" => {}
                "input_required" => {
                    let inputs = self.answers(&found["inputRequests"]).await;
                    let params = json!({ "taskId": task, "inputResponses": inputs });
                    self.client.ask("tasks/update", params).await.result();
                }
                "completed" => return found["result"].take(),
                _ => panic!("{found:#}"),
            }
        }
    }
}

async fn everybody_answers_their_own_questions(seed: u64) {
    let world = Setup::new()
        .route(AFTER)
        .route("tools: [{ match: always, mode: always }]")
        .top("limits: { polls_per_second: 1000000 }")
        .start()
        .await;
    let addr = world.addr();
    let server = Arc::new(Server {
        legacy: world.server,
        seed,
        open: watch::Sender::default(),
        served: Mutex::default(),
    });
    let serving = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..CALLERS {
                let call = server.legacy.call().await;
                let server = Arc::clone(&server);
                calls.spawn(async move { server.serve(call).await });
            }
            calls.join_all().await;
        }
    });
    let callers = (0..CALLERS).map(|number| {
        let client = Client::new(addr).bearing(principal(number));
        // Every third knows no tasks.
        let knows = if number.is_multiple_of(3) { everything() } else { with_tasks(everything()) };
        let caller = Caller {
            client: client.declaring(knows),
            number,
            seed,
            open: server.open.subscribe(),
            keys: BTreeSet::new(),
        };
        tokio::spawn(caller.calls())
    });
    let callers: Vec<_> = callers.collect();
    let outcomes = timeout(PATIENCE * 3, join_all(callers)).await.expect("all are answered");
    let tasks = outcomes.into_iter().filter(|outcome| *outcome.as_ref().expect("each got its own")).count();
    timeout(PATIENCE, serving).await.expect("all are served").expect("each was answered as it should be");

    assert!((1..CALLERS as usize).contains(&tasks), "{tasks} of {CALLERS} became tasks");
    assert!(server.open.borrow().most >= AT_ONCE);
    assert_eq!(server.legacy.messages("tools/call") as u64, CALLERS, "none was made again");
    assert_eq!(server.legacy.messages("notifications/cancelled"), 0);
    let refused = server.legacy.count(|seen| seen.method().is_empty() && !seen.json["error"].is_null());
    assert_eq!(refused, 0, "none was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_callers_of_two_principals_each_answer_their_own_input_requests_and_only_those() {
    for seed in [1, 2, 3] {
        println!("seed {seed}");
        everybody_answers_their_own_questions(seed).await;
    }
}
