//! Events that can happen next.

use super::{Asks, CALLS, Client, Happening, PARK, Tool, Way, WholeProxy};
use std::{collections::BTreeSet, time::Duration};

impl WholeProxy {
    pub(super) fn possible(&self) -> Vec<Happening> {
        let mut possible = vec![
            Happening::Passes(Duration::from_millis(30)),
            Happening::Passes(Duration::from_secs(3)),
            Happening::Passes(Duration::from_secs(6)),
            Happening::Passes(PARK + Duration::from_secs(60)),
        ];
        let is_up = self.proxy.is_some();
        if is_up {
            possible.push(Happening::Stops);
            self.clients_begin(&mut possible);
            self.clients_go_on(&mut possible);
        }
        if self.server.is_alive() {
            self.server_acts(&mut possible);
        } else if self.server.has_lives() {
            possible.push(Happening::ServerComesBack);
        }
        possible
    }

    fn clients_begin(&self, possible: &mut Vec<Happening>) {
        let room = self.calls.len() < CALLS;
        for (who, person) in self.people.iter().enumerate() {
            match person.has_session() {
                true if room => {
                    possible.push(Happening::Calls(who, Tool::Slow));
                    possible.push(Happening::Calls(who, Tool::Quick));
                    possible.push(Happening::Calls(who, Tool::Plain));
                    if person.is_legacy() {
                        possible.push(Happening::CallsForTask(who));
                    }
                }
                false if self.server.is_alive() => possible.push(Happening::Begins(who)),
                true | false => {}
            }
            if person.is_legacy() && person.has_session() {
                possible.push(Happening::ListsTasks(who));
                possible.push(match person.listens() {
                    true => Happening::ListensNot(who),
                    false => Happening::Listens(who),
                });
            }
        }
    }

    fn clients_go_on(&self, possible: &mut Vec<Happening>) {
        for (&n, call) in &self.calls {
            match &call.client {
                Client::Waits(_) => {
                    possible.push(Happening::Leaves(n));
                    let person = &self.people[call.who];
                    // One that is to be a task is cancelled by the task's id, and none is in another session.
                    let is_task = call.for_task && !person.takes_tasks();
                    let is_over = call.excuse.is_some() || call.answered.is_some();
                    if person.is_legacy() && person.has_session() && !is_task && !is_over {
                        possible.push(Happening::TakesBack(n));
                    }
                }
                Client::Asked { .. } => possible.push(Happening::ComesBack(n)),
                Client::Task { ended: false, result, .. } => {
                    if self.people[call.who].is_legacy() && self.people[call.who].has_session() {
                        possible.push(match result {
                            None => Happening::AwaitsResult(n),
                            Some(_) => Happening::AwaitsResultNot(n),
                        });
                    }
                    possible.push(Happening::LooksAtTask(n));
                    possible.push(Happening::CancelsTask(n));
                    possible.push(Happening::AnswersInTask(n));
                    let spies = (0..self.people.len())
                        .filter(|spy| self.people[*spy].principal != self.people[call.who].principal)
                        .filter(|spy| self.people[*spy].is_legacy() == self.people[call.who].is_legacy())
                        .filter(|spy| self.people[*spy].has_session());
                    possible.extend(spies.map(|spy| Happening::SpiesOnTask(spy, n)));
                }
                Client::Task { ended: true, .. } | Client::TookBack(..) | Client::Ended | Client::Left => {}
            }
        }
        let with_clients = self.questions.iter().filter(|(_, question)| question.with_client.is_some());
        possible.extend(with_clients.map(|(id, _)| Happening::Responds(*id)));
    }

    fn server_acts(&self, possible: &mut Vec<Happening>) {
        let mut sessions = BTreeSet::new();
        for (&n, call) in &self.calls {
            let Some(served) = &call.served else { continue };
            if served.is_open() {
                possible.push(Happening::ServerAnswers(n));
                possible.push(Happening::ServerBreaksOff(n));
            }
            if call.answered.is_some() || call.cancelled {
                continue;
            }
            sessions.insert(served.session.clone());
            if self.profile.asks != Asks::OnTheSession && served.stream().is_some() {
                possible.push(Happening::ServerAsks(n, Way::OnTheCall));
            }
            // It may ask also for what its client no longer waits for.
            let may = self.profile.asks != Asks::OnTheCall || !served.is_open();
            if may && self.server.listening(&served.session).is_some() {
                possible.push(Happening::ServerAsks(n, Way::OnTheSession));
            }
        }
        possible.extend(sessions.into_iter().map(Happening::ServerHangsUp));
        possible.push(Happening::ServerDies);
    }
}
