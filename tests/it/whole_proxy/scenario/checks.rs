//! Invariants: messages reach only their client, every request is answered, stored tasks are known to a client.

use super::{
    super::server::{Served, number},
    AT_ONCE, CALLS, Call, Client, DRAIN, Happening, MOMENT, Tool, WholeProxy, answer, name,
};
use deferral::internals::{runtime::Clock, store::Store as _};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::time::sleep;

impl WholeProxy {
    /// Lets everything run until it waits, and looks at what came of it.
    pub(super) async fn look(&mut self) {
        for _ in 0..2 {
            sleep(MOMENT).await;
            while let Some(call) = self.server.next_call().await {
                self.arrived(call);
            }
            self.server_hears();
            self.sessions_hear();
            for n in 0..self.calls.len() {
                self.client_hears(n);
                self.result_is_heard(n);
            }
        }
        self.server_is_told();
        self.questions_are_put();
        self.what_is_kept_is_known().await;
    }

    /// A call has come to the server.
    fn arrived(&mut self, call: crate::support::legacy_server::Call) {
        let Some(n) = call.seen.json["params"]["arguments"]["n"].as_u64() else {
            self.fails(&format!("the server was sent what nobody said: {}", call.seen.json));
        };
        let n = usize::try_from(n).expect("small");
        let tool = self.calls[&n].tool;
        if self.calls[&n].served.is_some() {
            self.fails(&format!("call {n} was made twice"));
        }
        if self.calls[&n].called_off {
            self.fails(&format!("call {n} was made although it had been called off"));
        }
        let served = Served::new(call, self.profile.documents);
        self.calls.get_mut(&n).expect("it is there").served = Some(served);
        if tool == Tool::Quick {
            self.server_answers(n);
        }
    }

    /// Answers and cancellations that have come to the server.
    fn server_hears(&mut self) {
        for seen in self.server.news() {
            let id = &seen.json["id"];
            if seen.method() == "notifications/cancelled" {
                self.server_hears_cancel(seen.session(), &seen.json["params"]["requestId"]);
            } else if seen.method().is_empty() && id.is_u64() {
                let id = u32::try_from(id.as_u64().expect("a number")).expect("small");
                let Some(question) = self.questions.get_mut(&id) else {
                    self.fails(&format!("the server is answered what it did not ask: {}", seen.json));
                };
                question.answers += 1;
                let (n, answers) = (question.call, question.answers);
                let is_home = seen.session() == question.session;
                if answers > 1 {
                    self.fails(&format!("question {id} is answered twice"));
                }
                if !is_home {
                    self.fails(&format!("the answer to question {id} went to another session"));
                }
                let told = &seen.json["result"]["content"]["name"];
                if told.is_string() && *told != answer(id) {
                    self.fails(&format!("question {id} of call {n} is answered for another: {told}"));
                }
            }
        }
    }

    fn server_hears_cancel(&mut self, session: &str, request: &Value) {
        let stopping = self.proxy.is_none();
        let about = self.calls.iter_mut().find(|(_, call)| {
            call.served.as_ref().is_some_and(|served| served.session == session && served.id == *request)
        });
        let Some((&n, call)) = about else {
            self.fails(&format!("a cancel of {request} in {session}, which is no call"));
        };
        call.cancelled = true;
        let may = call.called_off || stopping || call.excuse.is_some();
        if !may {
            self.fails(&format!("call {n} was cancelled, and nobody wanted it"));
        }
    }

    /// What comes on the own streams of legacy sessions.
    fn sessions_hear(&mut self) {
        for who in 0..self.people.len() {
            for message in self.people[who].news() {
                self.is_asked(who, &message);
            }
        }
    }

    /// A legacy client reads this on its session's stream: an input request or a cancellation of one.
    fn is_asked(&mut self, who: usize, message: &Value) {
        if message["method"] == "notifications/cancelled" {
            let taken_back = &message["params"]["requestId"];
            for question in self.questions.values_mut() {
                question.with_client.take_if(|id| id == taken_back);
            }
        }
        if message["method"] != "elicitation/create" {
            return;
        }
        let id = number(message).and_then(|id| self.questions.get(&id).map(|_| id));
        let Some(id) = id else { self.fails(&format!("a client is asked what no server asked: {message}")) };
        let n = self.questions[&id].call;
        if self.calls[&n].who != who {
            self.fails(&format!("a question of call {n} is put to another client: {message}"));
        }
        let task = &message["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"];
        match &self.calls[&n].client {
            Client::Task { id, .. } if *task != Value::Null && task != id => {
                self.fails(&format!("a question of call {n} is put in another task: {message}"))
            }
            _ => {}
        }
        let is_over = matches!(self.calls[&n].client, Client::TookBack(..));
        let question = self.questions.get_mut(&id).expect("it is there");
        question.was_put = true;
        if question.answers == 0 && !question.is_moot && !is_over {
            question.with_client = Some(message["id"].clone());
        }
    }

    /// Within a short time the server receives every cancellation and input response.
    fn server_is_told(&self) {
        let now = self.clock.now();
        for (n, call) in &self.calls {
            let is_late = call.hushed.is_some_and(|since| now - since >= AT_ONCE);
            let may_go_on = call.cancelled || call.answered.is_some() || call.excuse.is_some();
            if is_late && !may_go_on && self.server.is_alive() {
                self.fails(&format!("the server goes on with call {n}, which was called off"));
            }
        }
    }

    /// What a server asks in a legacy client's own session is put to the client, or refused; and whatever a client
    /// has answered reaches the server.
    fn questions_are_put(&self) {
        let now = self.clock.now();
        for (id, question) in &self.questions {
            let call = &self.calls[&question.call];
            let person = &self.people[call.who];
            let can_hear = match &call.client {
                Client::Waits(_) => true,
                Client::Task { ended, result, .. } => {
                    !ended && (person.listens() || result.as_ref().is_some_and(|result| !result.is_over()))
                }
                Client::Asked { .. } | Client::TookBack(..) | Client::Ended | Client::Left => false,
            };
            let is_over = call.answered.is_some() || call.called_off || call.excuse.is_some();
            let is_lost = question.answered.is_some_and(|at| now - at >= AT_ONCE);
            if is_lost && question.answers == 0 && !question.is_moot && !is_over && self.proxy.is_some() {
                self.fails(&format!("the answer to question {id} of call {} is lost", question.call));
            }
            let is_open = !question.was_put && question.answers == 0 && !question.is_moot && !is_over;
            let is_late = now - question.asked >= AT_ONCE;
            if is_late && is_open && can_hear && person.is_legacy() && self.proxy.is_some() {
                self.fails(&format!("question {id} of call {} is put to nobody", question.call));
            }
        }
    }

    /// A task is kept for each handle that was given, and for each call that was left by a client that takes
    /// tasks; no other.
    async fn what_is_kept_is_known(&self) {
        if self.proxy.is_none() || self.store.is_busy() {
            return;
        }
        let known = |call: &&Call| matches!(call.client, Client::Task { .. }) || self.is_kept_unseen(call);
        let known = self.calls.values().filter(known).count();
        let kept = self.store.usage(&[0; 16]).tasks;
        if kept != known {
            self.fails(&format!("{kept} tasks are kept, and clients know of {known}"));
        }
    }

    /// What has come of a call for its client.
    fn client_hears(&mut self, n: usize) {
        let who = self.calls[&n].who;
        let (messages, is_over, taken_back) = match &self.calls[&n].client {
            Client::Waits(following) => (following.messages(), following.is_over(), None),
            Client::TookBack(following, since) => (following.messages(), following.is_over(), Some(*since)),
            Client::Asked { .. } | Client::Task { .. } | Client::Ended | Client::Left => return,
        };
        for message in &messages {
            if message["method"] == "elicitation/create" {
                self.hears(n, &message["params"]["message"]);
            }
            self.is_asked(who, message);
        }
        if !is_over {
            return match taken_back {
                Some(since) => self.ends_in_time(n, since),
                None => self.may_wait(n),
            };
        }
        if taken_back.is_some() && messages.last().is_none_or(|last| last["result"].is_null()) {
            self.calls.get_mut(&n).expect("it is there").client = Client::Ended;
            return;
        }
        let client = match messages.last() {
            Some(last) if last["error"].is_object() => self.ends_badly(n, last),
            Some(last) => self.ends(n, &last["result"]),
            None => self.fails(&format!("call {n} ended without a word")),
        };
        self.calls.get_mut(&n).expect("it is there").client = client;
    }

    /// Whether an end may still be waited for of a call that was taken back: where it only passes, that is
    /// the server's affair.
    fn ends_in_time(&self, n: usize, since: Instant) {
        let call = &self.calls[&n];
        let is_driven = self.people[call.who].takes_tasks() && call.tool != Tool::Plain;
        if is_driven && self.clock.now() - since >= AT_ONCE {
            self.fails(&format!("call {n} was taken back, and does not end"));
        }
    }

    /// What a legacy client hears that waits for the result of its task.
    fn result_is_heard(&mut self, n: usize) {
        let who = self.calls[&n].who;
        let Client::Task { id, result: Some(following), .. } = &self.calls[&n].client else { return };
        let (id, is_over, messages) = (id.clone(), following.is_over(), following.messages());
        for message in &messages {
            if message["method"] == "elicitation/create" {
                self.hears(n, &message["params"]["message"]);
            }
            self.is_asked(who, message);
        }
        if !is_over {
            if self.has_been_answered(n) {
                self.fails(&format!("the result of call {n} is waited for, which has ended"));
            }
            return;
        }
        match messages.last() {
            Some(last) if last["error"].is_object() => drop(self.ends_badly(n, last)),
            Some(last) => {
                self.hears(n, &last["result"]["content"][0]["text"]);
                let task = &last["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"];
                if *task != id {
                    self.fails(&format!("the result of call {n} is of another task: {last}"));
                }
            }
            None => self.fails(&format!("the result of call {n} ended without a word")),
        }
        let client = Client::Task { id, ended: true, result: None };
        self.calls.get_mut(&n).expect("it is there").client = client;
    }

    /// Whether the server's answer has been there for a while.
    pub(super) fn has_been_answered(&self, n: usize) -> bool {
        self.calls[&n].answered.is_some_and(|at| self.clock.now() - at >= AT_ONCE)
    }

    /// Whether a call may still be waited for. What is answered at once is not held up by the tasks
    /// of anybody, nor by what others wait for.
    fn may_wait(&mut self, n: usize) {
        let call = &self.calls[&n];
        let undecided = self.calls.iter().filter(|(other, theirs)| {
            **other != n
                && self.people[theirs.who].principal == self.people[call.who].principal
                && !self.people[theirs.who].is_legacy()
                && matches!(theirs.client, Client::Waits(_) | Client::Asked { .. })
        });
        let has_room = self.people[call.who].is_legacy() || undecided.count() < self.profile.sessions;
        let now = self.clock.now();
        let call = self.calls.get_mut(&n).expect("it is there");
        call.was_crowded |= !has_room;
        call.has_room = if has_room { Some(call.has_room.unwrap_or(now)) } else { None };
        let waited = call.has_room.is_some_and(|since| now - since >= AT_ONCE);
        if waited && call.tool == Tool::Quick && call.excuse.is_none() {
            self.fails(&format!("call {n}, which the server answers at once, is not answered"));
        }
    }

    fn ends_badly(&self, n: usize, last: &Value) -> Client {
        let call = &self.calls[&n];
        let stopped = self.proxy.is_none();
        let code = last["error"]["code"].as_i64().unwrap_or_default();
        match code {
            -31007 if stopped => Client::Ended,
            // It waited for a session as long as calls may.
            -31006 if call.was_crowded && call.served.is_none() => Client::Ended,
            _ if call.excuse.is_some() || call.called_off => Client::Ended,
            _ => self.fails(&format!("call {n} ends badly for no reason: {last}")),
        }
    }

    fn ends(&self, n: usize, result: &Value) -> Client {
        let call = &self.calls[&n];
        let person = &self.people[call.who];
        if person.is_legacy() && result["task"].is_object() {
            if !call.for_task && !person.takes_tasks() || call.tool == Tool::Plain {
                self.fails(&format!("call {n} is a task for a client that takes none: {result}"));
            }
            let task = &result["task"];
            return Client::Task { id: self.new_handle(n, &task["taskId"]), ended: false, result: None };
        }
        if call.for_task && !person.takes_tasks() {
            self.fails(&format!("call {n} was to be a task: {result}"));
        }
        match result["resultType"].as_str() {
            Some("input_required") => {
                let requests = result["inputRequests"].clone();
                for request in requests.as_object().into_iter().flat_map(|requests| requests.values()) {
                    self.hears(n, &request["params"]["message"]);
                }
                let state = result["requestState"].as_str().expect("a state").to_owned();
                Client::Asked { state, requests }
            }
            Some("task") if person.knows_tasks() => {
                let had_room = call.has_room.is_some_and(|since| self.clock.now() - since >= AT_ONCE);
                if call.tool == Tool::Quick && !self.profile.always && call.excuse.is_none() && had_room {
                    self.fails(&format!("call {n}, which the server answers at once, became a task"));
                }
                if call.tool == Tool::Plain {
                    self.fails(&format!("call {n} is never to be a task: {result}"));
                }
                Client::Task { id: self.new_handle(n, &result["taskId"]), ended: false, result: None }
            }
            Some("complete") | None => {
                self.hears(n, &result["content"][0]["text"]);
                Client::Ended
            }
            Some(_) => self.fails(&format!("call {n} has an answer that its client does not know: {result}")),
        }
    }

    /// A handle that no client was given before.
    fn new_handle(&self, n: usize, id: &Value) -> String {
        let id = id.as_str().expect("an id");
        let has_it = |call: &Call| matches!(&call.client, Client::Task { id: given, .. } if given == id);
        if self.calls.values().any(has_it) {
            self.fails(&format!("call {n} is given the handle of another: {id}"));
        }
        id.to_owned()
    }

    /// A client hears this of one of its calls.
    pub(super) fn hears(&self, n: usize, text: &Value) {
        if *text != name(n) {
            self.fails(&format!("call {n} hears what is {text}"));
        }
    }

    /// Everything comes to an end, and everybody hears of it.
    pub(super) async fn end(&mut self) {
        if self.proxy.is_some() {
            match self.profile.in_a_hurry {
                true if self.profile.meets => self.tasks_and_calls_meet().await,
                true => {}
                false => self.all_is_answered().await,
            }
            self.log.push("the end".to_owned());
            self.happen(Happening::Stops).await;
        }
        self.look().await;
        sleep(DRAIN + Duration::from_secs(10)).await;
        self.look().await;
        if !self.stopping.as_ref().expect("it is stopping").is_finished() {
            self.fails("the proxy does not stop");
        }
        for (n, call) in &self.calls {
            if matches!(call.client, Client::Waits(_) | Client::TookBack(..)) {
                self.fails(&format!("call {n} never ended"));
            }
            let is_left = matches!(call.client, Client::Left) && !self.is_kept_unseen(call);
            let awaited = !is_left || !self.people[call.who].is_legacy();
            let is_told = call.cancelled || call.answered.is_some() || call.excuse.is_some() || !awaited;
            if call.served.is_some() && !is_told && self.server.is_alive() {
                self.fails(&format!("the server goes on with call {n}, for nobody"));
            }
        }
    }

    /// Of each client one call is a task and another is not when the proxy is stopped: where clients share a
    /// session with the server, in one session.
    async fn tasks_and_calls_meet(&mut self) {
        self.log.push("tasks and calls meet".to_owned());
        if !self.server.is_alive() {
            return;
        }
        for tool in [Tool::Slow, Tool::Plain] {
            for who in 0..self.people.len() {
                if self.people[who].has_session() {
                    self.call(who, tool, tool == Tool::Slow && self.people[who].is_legacy()).await;
                }
            }
            self.look().await;
            if tool == Tool::Slow {
                sleep(Duration::from_secs(6)).await;
                self.look().await;
            }
        }
    }

    /// The server answers all it has, and each client fetches what is theirs.
    async fn all_is_answered(&mut self) {
        self.log.push("the server answers".to_owned());
        if !self.server.is_alive() && self.server.has_lives() {
            self.server.come_back();
        }
        for _ in 0..2 * CALLS {
            for n in 0..self.calls.len() {
                if self.calls[&n].served.as_ref().is_some_and(Served::is_open) {
                    self.server_answers(n);
                }
                self.look().await;
                match &self.calls[&n].client {
                    Client::Asked { .. } => self.come_back(n).await,
                    Client::Task { ended: false, result: None, .. }
                        if self.people[self.calls[&n].who].is_legacy() =>
                    {
                        if self.people[self.calls[&n].who].has_session() {
                            self.await_result(n).await;
                        }
                    }
                    Client::Task { ended: false, .. } => drop(self.look_at_task(n).await),
                    Client::Task { .. }
                    | Client::TookBack(..)
                    | Client::Waits(_)
                    | Client::Ended
                    | Client::Left => {}
                }
            }
            if self.calls.values().all(|call| self.is_over(call)) {
                break;
            }
            // A broken stream is given up on after a while.
            sleep(Duration::from_secs(5)).await;
            self.look().await;
        }
        for (n, call) in &self.calls {
            if !self.is_over(call) {
                self.fails(&format!("call {n} does not end although its server has answered"));
            }
        }
    }

    /// Whether there is nothing more that its client could hear of a call.
    pub(super) fn is_over(&self, call: &Call) -> bool {
        match &call.client {
            Client::Ended | Client::Left => true,
            Client::Task { ended, .. } => *ended || !self.people[call.who].has_session(),
            Client::Waits(_) | Client::TookBack(..) | Client::Asked { .. } => false,
        }
    }
}
