//! Events, and what they do to clients, the server and the clock.

use super::{
    super::server::question, AT_ONCE, Call, Client, Happening, MOMENT, PARK, Question, SETTLE, Tool, Way,
    WholeProxy, answer, answers, name, numbers, params,
};
use crate::support::modern_client::Following;
use deferral::internals::runtime::Clock;
use serde_json::{Value, json};
use tokio::time::sleep;

impl WholeProxy {
    pub(super) async fn happen(&mut self, happening: Happening) {
        self.log.push(format!("{happening:?}"));
        match happening {
            Happening::Begins(who) => self.people[who].begin().await,
            Happening::Calls(who, tool) => self.call(who, tool, false).await,
            Happening::CallsForTask(who) => self.call(who, Tool::Slow, true).await,
            Happening::Leaves(n) => self.leave(n),
            Happening::TakesBack(n) => self.take_back(n).await,
            Happening::Listens(who) => self.people[who].listen().await,
            Happening::ListensNot(who) => self.people[who].listen_no_more(),
            Happening::ComesBack(n) => self.come_back(n).await,
            Happening::AnswersInTask(n) => self.answer_in_task(n).await,
            Happening::Responds(id) => self.respond(id).await,
            Happening::LooksAtTask(n) => drop(self.look_at_task(n).await),
            Happening::AwaitsResult(n) => self.await_result(n).await,
            Happening::AwaitsResultNot(n) => {
                if let Some(Client::Task { result, .. }) = self.calls.get_mut(&n).map(|call| &mut call.client)
                {
                    result.take().expect("it is awaited").leave();
                }
            }
            Happening::ListsTasks(who) => self.list_tasks(who).await,
            Happening::SpiesOnTask(spy, n) => self.spy(spy, n).await,
            Happening::CancelsTask(n) => self.cancel(n).await,
            Happening::ServerAnswers(n) => self.server_answers(n),
            Happening::ServerAsks(n, way) => self.server_asks(n, way),
            Happening::ServerBreaksOff(n) => {
                let call = self.calls.get_mut(&n).expect("it is there");
                call.excuse = Some("its answer broke off");
                call.served.as_mut().expect("the server has it").break_off();
            }
            Happening::ServerHangsUp(session) => self.server.hang_up(&session),
            Happening::ServerDies => self.server_dies(),
            Happening::ServerComesBack => self.server.come_back(),
            Happening::Passes(time) => {
                sleep(time).await;
                if time > PARK {
                    self.parking_ends();
                }
            }
            Happening::Stops => {
                let proxy = self.proxy.take().expect("it stops once");
                self.stopping = Some(tokio::spawn(proxy.stop()));
            }
        }
    }

    /// What was asked on a call itself has waited for its client for too long.
    fn parking_ends(&mut self) {
        for question in self.questions.values().filter(|question| question.answers == 0) {
            let call = self.calls.get_mut(&question.call).expect("it is there");
            if matches!(call.client, Client::Asked { .. } | Client::Waits(_)) {
                call.excuse = Some("nobody answered for too long");
                call.called_off = true;
            }
        }
    }

    pub(super) async fn call(&mut self, who: usize, tool: Tool, for_task: bool) {
        let n = self.calls.len();
        let following = self.send(who, "tools/call", params(n, tool, for_task)).await;
        let id = self.next_id;
        let excuse = (!self.server.is_alive()).then_some("there was no server");
        let call = Call {
            who,
            id,
            tool,
            has_room: None,
            was_crowded: false,
            for_task,
            client: Client::Waits(following),
            served: None,
            excuse,
            called_off: false,
            hushed: None,
            cancelled: false,
            answered: None,
        };
        self.calls.insert(n, call);
    }

    async fn send(&mut self, who: usize, method: &str, params: Value) -> Following {
        self.next_id += 1;
        self.people[who].send(self.next_id, method, params).await
    }

    /// Asks for something that is answered at once.
    async fn ask(&mut self, who: usize, method: &str, params: Value) -> Value {
        let following = self.send(who, method, params).await;
        for _ in 0..200 {
            if following.is_over() {
                break;
            }
            sleep(MOMENT).await;
        }
        if !following.is_over() {
            self.fails(&format!("{method} is not answered"));
        }
        let answer = following.messages().pop();
        answer.unwrap_or_else(|| self.fails(&format!("{method} is answered with nothing")))
    }

    fn leave(&mut self, n: usize) {
        let is_legacy = self.people[self.calls[&n].who].is_legacy();
        let call = self.calls.get_mut(&n).expect("it is there");
        match std::mem::replace(&mut call.client, Client::Left) {
            Client::Waits(following) => following.leave(),
            _ => unreachable!("only who waits can leave"),
        }
        // A departure is no cancel in older revisions.
        if !is_legacy {
            let now = self.clock.now();
            call.is_called_off(now);
            // In this moment the client may be answered with what it is asked. Nobody knows then that it has not
            // read that, and it is waited for as one that was asked.
            let is_due = |question: &Question| now + MOMENT * 2 >= question.asked + SETTLE;
            if self
                .questions
                .values()
                .any(|question| question.call == n && question.answers == 0 && is_due(question))
            {
                call.hushed = None;
            }
        }
    }

    async fn take_back(&mut self, n: usize) {
        let (now, call) = (self.clock.now(), self.calls.get_mut(&n).expect("it is there"));
        let Client::Waits(following) = std::mem::replace(&mut call.client, Client::Left) else {
            unreachable!("only who waits takes back")
        };
        call.client = Client::TookBack(following, now);
        call.is_called_off(now);
        let (who, id) = (call.who, call.id);
        // What was asked in it, its client answers no more.
        for question in self.questions.values_mut().filter(|question| question.call == n) {
            question.with_client = None;
        }
        drop(self.people[who].cancel(id).await);
    }

    pub(super) async fn come_back(&mut self, n: usize) {
        let Client::Asked { state, requests } = &self.calls[&n].client else {
            unreachable!("only who was asked comes back")
        };
        let mut params = params(n, self.calls[&n].tool, false);
        params["requestState"] = json!(state);
        params["inputResponses"] = answers(requests);
        let following = self.send(self.calls[&n].who, "tools/call", params).await;
        self.calls.get_mut(&n).expect("it is there").client = Client::Waits(following);
    }

    async fn answer_in_task(&mut self, n: usize) {
        let task = self.look_at_task(n).await;
        let Client::Task { id, ended: false, .. } = &self.calls[&n].client else { return };
        if task["status"] != "input_required" || self.people[self.calls[&n].who].is_legacy() {
            return;
        }
        let params = json!({ "taskId": id, "inputResponses": answers(&task["inputRequests"]) });
        let answer = self.ask(self.calls[&n].who, "tasks/update", params).await;
        if answer["error"].is_object() {
            self.fails(&format!("the answers in the task of call {n} are refused: {answer}"));
        }
        self.are_answered(numbers(&task["inputRequests"]));
    }

    fn are_answered(&mut self, questions: Vec<u32>) {
        for id in questions {
            self.questions.get_mut(&id).expect("it is there").answered = Some(self.clock.now());
        }
    }

    async fn respond(&mut self, id: u32) {
        let question = self.questions.get_mut(&id).expect("it is there");
        let its_id = question.with_client.take().expect("it is with its client");
        let (n, who) = (question.call, self.calls[&question.call].who);
        let call = &self.calls[&n];
        let is_over = call.called_off || call.excuse.is_some() || call.answered.is_some();
        // It passes under the server's own id, and would cross the refusal of what was asked in a call that is
        // over.
        let would_cross = its_id.is_u64() && is_over && self.people[who].takes_tasks();
        if self.people[who].has_session() && !would_cross {
            // Whether it is taken is the server's affair.
            let answer = json!({ "action": "accept", "content": { "name": answer(id) } });
            drop(self.people[who].respond(&its_id, answer).await);
            self.are_answered(vec![id]);
        }
    }

    /// The view of a task that its client gets; records its end.
    pub(super) async fn look_at_task(&mut self, n: usize) -> Value {
        let (who, id) = self.task(n);
        if !self.people[who].has_session() {
            return Value::Null;
        }
        let answer = self.ask(who, "tasks/get", json!({ "taskId": id })).await;
        let task = answer["result"].clone();
        if !task.is_object() {
            self.fails(&format!("the task of call {n} is not found: {answer}"));
        }
        for request in task["inputRequests"].as_object().into_iter().flat_map(|requests| requests.values()) {
            self.hears(n, &request["params"]["message"]);
        }
        let call = &self.calls[&n];
        let ended = match task["status"].as_str() {
            Some("working" | "input_required") if self.has_been_answered(n) => {
                self.fails(&format!("the task of call {n} goes on, which has ended: {task}"))
            }
            Some("working" | "input_required") => false,
            Some("completed") => {
                if self.people[who].knows_tasks() {
                    self.hears(n, &task["result"]["content"][0]["text"]);
                }
                true
            }
            Some("failed") if call.excuse.is_some() => true,
            Some("cancelled") if call.called_off => true,
            _ => self.fails(&format!("the task of call {n} has no right to end like this: {task}")),
        };
        if let Client::Task { ended: known, .. } = &mut self.calls.get_mut(&n).expect("it is there").client {
            *known = ended;
        }
        task
    }

    async fn spy(&mut self, spy: usize, n: usize) {
        let (_, id) = self.task(n);
        let theirs = self.ask(spy, "tasks/get", json!({ "taskId": id })).await;
        let nothing = self.ask(spy, "tasks/get", json!({ "taskId": "0".repeat(id.len()) })).await;
        if theirs["error"]["code"] != nothing["error"]["code"] || theirs["error"].is_null() {
            self.fails(&format!("somebody else can tell that the task of call {n} is there: {theirs}"));
        }
    }

    async fn cancel(&mut self, n: usize) {
        let (who, id) = self.task(n);
        if self.people[who].has_session() {
            let now = self.clock.now();
            self.calls.get_mut(&n).expect("it is there").is_called_off(now);
            // One that has ended may refuse.
            self.ask(who, "tasks/cancel", json!({ "taskId": id })).await;
        }
    }

    pub(super) async fn await_result(&mut self, n: usize) {
        let (who, id) = self.task(n);
        let following = self.send(who, "tasks/result", json!({ "taskId": id })).await;
        if let Some(Client::Task { result, .. }) = self.calls.get_mut(&n).map(|call| &mut call.client) {
            *result = Some(following);
        }
    }

    /// A legacy client is shown its own tasks, each once, and those that it has left before it heard of them.
    async fn list_tasks(&mut self, who: usize) {
        let answer = self.ask(who, "tasks/list", json!({})).await;
        let listed = answer["result"]["tasks"].as_array().into_iter().flatten();
        let mut listed: Vec<_> =
            listed.filter_map(|task| Some((task["taskId"].as_str()?, task["status"].as_str()?))).collect();
        let principal = self.people[who].principal;
        let of_theirs =
            |call: &&Call| self.people[call.who].is_legacy() && self.people[call.who].principal == principal;
        let theirs = || self.calls.values().filter(of_theirs);
        for call in theirs() {
            let Client::Task { id, .. } = &call.client else { continue };
            let Some(at) = listed.iter().position(|(listed, _)| listed == id) else {
                self.fails(&format!("a task is not in its client's list: {answer}"));
            };
            listed.swap_remove(at);
        }
        if self.store.is_busy() {
            return;
        }
        let left = || theirs().filter(|call| self.is_kept_unseen(call));
        let at_work = left().filter(|call| call.answered.is_none() && call.excuse.is_none()).count();
        let works =
            listed.iter().filter(|(_, status)| matches!(*status, "working" | "input_required")).count();
        if listed.len() != left().count() || works < at_work {
            self.fails(&format!("of the calls that were left {at_work} go on, and the tasks are {listed:?}"));
        }
        let fresh = |call: &Call| call.answered.is_some_and(|at| self.clock.now() - at < AT_ONCE);
        if works > at_work + left().filter(|call| call.excuse.is_some() || fresh(call)).count() {
            self.fails(&format!(
                "{at_work} of the calls that were left go on, and more tasks do: {listed:?}"
            ));
        }
    }

    /// Whether a call that its client has left is a task, which that may find.
    pub(super) fn is_kept_unseen(&self, call: &Call) -> bool {
        let becomes_one = self.people[call.who].takes_tasks() && call.tool != Tool::Plain;
        matches!(call.client, Client::Left) && (becomes_one || call.for_task)
    }

    fn task(&self, n: usize) -> (usize, String) {
        match &self.calls[&n].client {
            Client::Task { id, .. } => (self.calls[&n].who, id.clone()),
            _ => unreachable!("it is a task"),
        }
    }

    pub(super) fn server_answers(&mut self, n: usize) {
        let call = self.calls.get_mut(&n).expect("it is there");
        call.answered = Some(self.clock.now());
        call.served.as_mut().expect("the server has it").answer(&name(n));
    }

    fn server_asks(&mut self, n: usize, way: Way) {
        let id = u32::try_from(self.questions.len()).expect("few");
        let served = self.calls[&n].served.as_ref().expect("the server has it");
        let question_text = question(id, &name(n));
        match way {
            Way::OnTheCall => served.stream().expect("it has one").send(&question_text),
            Way::OnTheSession => {
                self.server.listening(&served.session).expect("it is open").send(&question_text);
            }
        }
        let session = served.session.clone();
        let asked = self.clock.now();
        let question = Question {
            call: n,
            session,
            asked,
            with_client: None,
            was_put: false,
            answered: None,
            is_moot: false,
            answers: 0,
        };
        self.questions.insert(id, question);
    }

    fn server_dies(&mut self) {
        self.server.die();
        for person in &mut self.people {
            person.lose_session();
        }
        for call in self.calls.values_mut() {
            if call.answered.is_none() {
                call.excuse = Some("its server died");
            }
            if let Some(served) = &mut call.served {
                served.die();
            }
        }
        for question in self.questions.values_mut() {
            question.with_client = None;
            question.is_moot = true;
        }
    }
}
