//! Invariants of every response and of the end.

use super::{
    process::{PARK, RETENTION},
    scenario::{Client, FULL, Profile, Scenario, Task, What, number},
    server::{ERROR, Word, result},
};
use deferral::internals::task::{Record, TaskId, TaskState};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Maximum time that a task is kept beyond its `ttlMs` if the wall clock was set back while no process ran.
const CLOCK_KEPT_WITHIN: Duration = Duration::from_secs(66);

const OUTCOME_UNKNOWN: i64 = -31002;
const SHUTTING_DOWN: i64 = -31007;
const TOO_LARGE: i64 = -31005;
/// The store does not answer; the client asks again.
const STORE_FAILED: i64 = -32603;

impl Scenario {
    /// A client receives a response, whose content is stored by then.
    pub(super) fn heard(&mut self, call: usize, what: &What, said: &Value) {
        let is_full = said["error"]["message"].as_str().is_some_and(|words| words.contains(FULL));
        if said["error"]["code"] == STORE_FAILED || is_full {
            if let (What::Call, Client::Waits) = (what, &self.calls[call].client) {
                self.calls[call].client = Client::Over;
            }
            return;
        }
        match what {
            What::Call => self.heard_of_call(call, &said["result"], &said["error"]),
            What::Get => self.shown(call, &said["result"]),
            What::Update(key, words, _) => {
                self.known(call, said);
                let kept = self.kept(call);
                if let Some(TaskState::InputRequired { outstanding }) =
                    kept.map(|record| record.state.clone())
                {
                    assert!(!outstanding.contains_key(key), "an answer is acknowledged and not kept");
                }
                let task = self.calls[call].task.as_mut().expect("it is one");
                task.open.remove(key);
                // A response to a withdrawn input request is acknowledged and ignored.
                if self.records.note(&task.id).answered.contains(key) {
                    task.answered.insert(words.clone());
                }
            }
            What::Cancel => {
                self.known(call, said);
                let kept = self.kept(call);
                assert!(
                    kept.is_none_or(|record| record.state.is_ended()),
                    "a cancel is acknowledged and not kept"
                );
                self.calls[call].task.as_mut().expect("it is one").is_cancelled = true;
            }
        }
    }

    fn heard_of_call(&mut self, call: usize, said: &Value, error: &Value) {
        if said["resultType"] == "input_required" {
            self.calls[call].asked = Some((self.calls[call].sent, self.lives));
        }
        self.calls[call].client = match said["resultType"].as_str() {
            Some("input_required") => Client::Asked {
                state: said["requestState"].as_str().expect("a state").to_owned(),
                requests: said["inputRequests"].clone(),
            },
            Some("task") => {
                let id = TaskId::parse(said["taskId"].as_str().expect("an id")).expect("an id of ours");
                let kept = self.records.get(&id).expect("a handle is given of what is not kept");
                assert_eq!(number(&kept), call, "somebody else's task");
                self.check_displayed_time(call, &kept);
                self.calls[call].task = Some(Task {
                    id,
                    created: kept.created,
                    created_at: said["createdAt"].as_str().expect("a time").to_owned(),
                    ttl: Duration::from_millis(said["ttlMs"].as_u64().expect("a number")),
                    ended: None,
                    open: BTreeMap::new(),
                    asked: BTreeMap::new(),
                    answered: BTreeSet::new(),
                    answers: BTreeMap::new(),
                    cancels: false,
                    is_cancelled: false,
                });
                Client::Over
            }
            Some("complete") => {
                self.is_own(call, said);
                Client::Over
            }
            _ => {
                assert!(error.is_object(), "{said}");
                Client::Over
            }
        };
    }

    /// A new task shows the time of day, and the store already has its offset, which the next process needs.
    fn check_displayed_time(&self, call: usize, kept: &Record) {
        if self.calls[call].steps < self.wall.steps || self.has_failed {
            return;
        }
        let off = kept.to_wall_time(self.now).as_millis().abs_diff(self.wall.time.wall().as_millis());
        assert!(off <= 1_001, "{call} is {off} ms off");
        let known = self.records.clock_offset();
        assert_eq!(known, kept.clock_offset, "the offset was not stored before {call}");
    }

    /// The result of a call is what its server said.
    fn is_own(&self, call: usize, said: &Value) {
        let word = self.server.calls()[&call].end;
        assert!(
            matches!(word, Some(Word::Result | Word::ToolError)),
            "{call} has a result of nobody: {said}"
        );
        let own: Value = serde_json::from_str(&result(call, word == Some(Word::ToolError))).expect("JSON");
        assert_eq!((&said["content"], &said["isError"]), (&own["content"], &own["isError"]));
    }

    /// A task is known for as long as its `ttl` promised.
    fn known(&self, call: usize, said: &Value) -> bool {
        let task = self.calls[call].task.as_ref().expect("it is one");
        let is_there = said["error"].is_null();
        let latest = self.now.max(self.wall.latest);
        assert!(is_there || latest >= task.created + task.ttl, "the handle of {call} is lost: {said}");
        is_there
    }

    fn kept(&self, call: usize) -> Option<Arc<Record>> {
        self.records.get(&self.calls[call].task.as_ref()?.id)
    }

    fn shown(&mut self, call: usize, shown: &Value) {
        if shown.is_null() {
            self.known(call, &json!({ "error": "Task not found" }));
            return;
        }
        let status = shown["status"].as_str().expect("a status").to_owned();
        let kept = self.kept(call).expect("what is shown is kept");
        let is_ended = !["working", "input_required"].contains(&status.as_str());
        if is_ended {
            assert_eq!(kept.state.status(), status, "an end is shown that is not kept");
        }
        if status == "completed" {
            self.is_own(call, &shown["result"]);
        }
        let task = self.calls[call].task.as_mut().expect("it is one");
        assert_eq!(shown["createdAt"], task.created_at.as_str(), "createdAt of {call} has changed");
        assert!(shown["lastUpdatedAt"].as_str() >= Some(&task.created_at), "{shown}");
        let end = json!([status, shown["result"], shown["error"]]);
        match &task.ended {
            Some(ended) => assert_eq!(*ended, end, "what was shown of {call} has changed"),
            None if is_ended => task.ended = Some(end),
            None => assert!(!task.is_cancelled, "{call} was cancelled, and goes on: {shown}"),
        }
        task.ttl = Duration::from_millis(shown["ttlMs"].as_u64().expect("a number"));
        let none = serde_json::Map::new();
        let open = shown["inputRequests"].as_object().unwrap_or(&none).iter();
        task.open = open
            .map(|(key, request)| {
                (key.clone(), request["params"]["message"].as_str().expect("words").to_owned())
            })
            .collect();
        task.asked.extend(task.open.clone());
        for (key, words) in &task.open {
            assert!(!task.answered.contains(words), "{words} was answered, and is asked again as {key}");
        }
    }

    /// Everything comes to its end, and is looked at.
    pub(super) fn end(&mut self) {
        if self.process.is_none() {
            self.start();
        }
        let store = &self.process.as_ref().expect("it is there").store;
        store.works();
        store.stalls(&[]);
        store.goes_on();
        self.tell(|| "the end".to_owned());
        self.everybody_looks();
        self.passes(Duration::from_secs(6));
        self.what_was_answered_has_arrived();
        self.who_cancelled_was_heard();
        let live: Vec<_> = {
            let calls = self.server.calls();
            calls
                .iter()
                .filter(|(_, served)| served.end.is_none() && served.cancelled == 0)
                .map(|(call, _)| *call)
                .collect()
        };
        for call in live {
            self.server.ends(call, Word::Result);
        }
        // A process was killed when it had told the server, and had not forgotten the task: the next waits for a server
        // that says nothing any more, and whose session ends some day.
        for call in self.server.listened_to_in_vain() {
            self.server.ends(call, Word::Lost);
        }
        // Also those are at an end that nobody works at, and those of which the server never says anything.
        self.passes(Duration::from_secs(6));
        self.everybody_looks();
        self.nobody_is_left();
        self.sums_are_right();
        // A task that could not be forgotten when its client left ends when it is due.
        let lives = if self.profile == Profile::DroppedRequests { 2 } else { 1 };
        self.passes(lives * RETENTION + self.wall.fell.min(CLOCK_KEPT_WITHIN) + Duration::from_secs(20));
        assert_eq!(self.records.all(), [], "what is over is forgotten");
        self.sums_are_right();
        assert_eq!(self.process.as_ref().map(|process| process.working()), Some(0));
        let process = self.process.take().expect("it is there");
        process.dies(&self.server);
    }

    fn everybody_looks(&mut self) {
        for call in 0..self.calls.len() {
            if self.calls[call].task.is_some() {
                self.ask(call, What::Get);
            }
        }
        self.passes(Duration::ZERO);
        assert!(self.process.is_some(), "nothing halts any more");
        assert!(self.flights.iter().all(|flight| flight.what == What::Call), "who looks is answered");
    }

    /// A waiting request is answered as soon as its call has ended, whatever the store does.
    pub(super) fn who_waits_for_what_is_there_is_answered(&self) {
        if self.profile != Profile::StallingStore || self.always {
            return;
        }
        let served = self.server.calls();
        for (number, call) in self.calls.iter().enumerate() {
            let has_ended = served.get(&number).is_some_and(|served| served.end.is_some());
            // Of a call that was given up, or is not held here, the store has to say what became of it.
            let may_be_over =
                call.asked.is_some_and(|(at, life)| self.now.since(at) >= PARK || life < self.lives);
            let waits = call.client == Client::Waits && !may_be_over;
            assert!(!waits || !has_ended, "{number} waits for what is there");
        }
    }

    /// What was acknowledged to be answered is with the server, and was answered once. So is what was kept to be
    /// answered, whether or not its client has stayed to hear so.
    fn what_was_answered_has_arrived(&self) {
        let served = self.server.calls();
        for (number, call) in self.calls.iter().enumerate() {
            let Some(task) = &call.task else { continue };
            let is_live = self.records.get(&task.id).is_some_and(|record| !record.state.is_ended());
            let note = self.records.note(&task.id);
            let kept = note.answered.iter().filter_map(|key| task.asked.get(key));
            for words in kept.chain(&task.answered) {
                let question: usize =
                    words.rsplit('-').next().and_then(|number| number.parse().ok()).expect("a number");
                let put = &served[&number].questions[question];
                let is_one = |it: &String| {
                    task.answers[words].iter().any(|answer| it.contains(&format!("\"{answer}\"")))
                };
                let has_it = put.answers.iter().any(is_one);
                assert!(has_it || !is_live || put.is_over, "the answer to {words} has not arrived");
            }
        }
        for (number, put) in
            served.iter().flat_map(|(number, it)| it.questions.iter().map(move |put| (number, put)))
        {
            assert!(put.answers.len() <= 1, "a question of {number} was answered twice: {:?}", put.answers);
        }
    }

    /// The server knows of each call that was cancelled before it had ended.
    fn who_cancelled_was_heard(&self) {
        for record in self.records.all().iter().filter(|record| record.state == TaskState::Cancelled) {
            let call = number(record);
            let is_told = self
                .server
                .calls()
                .get(&call)
                .is_none_or(|it| it.cancelled > 0 || it.end.is_some() || it.has_forgotten);
            assert!(
                is_told || self.calls[call].may_go_untold,
                "the server was not told that {call} is cancelled"
            );
        }
    }

    fn nobody_is_left(&self) {
        for record in self.records.all() {
            let call = number(&record);
            if self.profile == Profile::DroppedRequests && self.calls[call].task.is_none() {
                continue;
            }
            assert!(record.state.is_ended(), "nobody works at {call}: {record:?}");
            self.has_reason(call, &record);
        }
        for (number, served) in &*self.server.calls() {
            assert!(served.times_called == 1, "{number} was made {} times", served.times_called);
        }
    }

    /// A task has ended as its call did, or there is a reason.
    fn has_reason(&self, number: usize, record: &Record) {
        let call = &self.calls[number];
        let calls = self.server.calls();
        let served = &calls[&number];
        match &record.state {
            TaskState::Working | TaskState::InputRequired { .. } => unreachable!("it has ended"),
            TaskState::Completed { .. } => {
                assert!(matches!(served.end, Some(Word::Result | Word::ToolError)), "{record:?}");
            }
            TaskState::Cancelled => {
                assert!(call.task.as_ref().is_some_and(|task| task.cancels), "nobody cancelled {number}");
            }
            TaskState::Failed { error } => {
                let error: Value = serde_json::from_slice(error).expect("JSON");
                let is_its_own = match served.end {
                    Some(Word::Error) => error["code"] == ERROR,
                    Some(Word::Lost) => true,
                    Some(Word::Result | Word::ToolError) | None => false,
                };
                let is_lost = call.may_be_lost && error["code"] == OUTCOME_UNKNOWN;
                let is_stopped = call.was_stopped && error["code"] == SHUTTING_DOWN;
                let is_gone = served.has_forgotten && self.lives > 1;
                let had_no_room = self.was_full && error["code"] == TOO_LARGE;
                assert!(
                    is_its_own || is_lost || is_stopped || is_gone || had_no_room,
                    "{number} failed for no reason: {error}"
                );
            }
        }
    }

    /// What is counted for each caller is what is there.
    fn sums_are_right(&self) {
        let all = self.records.all();
        for principal in self.principals() {
            let counted = self.records.counted(&principal);
            let own: Vec<_> = all.iter().filter(|record| record.owner.principal == principal).collect();
            let bytes =
                |records: &[&Arc<Record>]| records.iter().map(|record| record.stored_bytes()).sum::<usize>();
            assert_eq!((counted.tasks, counted.tasks_of_principal), (all.len(), own.len()));
            assert_eq!(counted.stored_bytes, bytes(&all.iter().collect::<Vec<_>>()));
            assert_eq!(counted.stored_bytes_of_principal, bytes(&own));
        }
    }
}
