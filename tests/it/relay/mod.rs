//! The state machine of a relayed response: its whole table, and its invariants.

use bytes::Bytes;
use deferral::internals::{
    bridge::relay::{LossReason, RelayAction, RelayOutcome, RelayPhase, ResponseRelay},
    dialect::legacy::{ResponseTracker, ResumePosition},
    policy::{KeepAliveTimer, WaitPolicy},
    protocol::{ErrorObject, RequestId, sse::EventDecoder},
    runtime::{Clock, SystemClock},
};
use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};
use std::time::{Duration, Instant};

/// Why an answer will not come, as far as a relay needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Broken,
    TimedOut,
    Closing,
    Unanswered,
    Empty,
}

type Subject = ResponseRelay<Cut>;
type Step = fn(&mut Subject, Instant);
type Make = fn(Instant) -> Subject;

const COMMENTS: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(60);
const HELD: WaitPolicy = WaitPolicy {
    progress_after: None,
    comment_after: COMMENTS,
    deadline: Some(DEADLINE),
    ticket_after: None,
};

const PRIMING: &str = "id: e1\nretry: 10\ndata:\n\n";
const RESULT: &str = "id: e2\ndata: {\"id\":7,\"result\":{}}\n\n";

impl LossReason for Cut {
    fn is_connection_loss(&self) -> bool {
        *self == Self::Broken
    }

    fn is_shutdown(&self) -> bool {
        *self == Self::Closing
    }

    fn error(&self) -> ErrorObject {
        ErrorObject::new(-31002, format!("{self:?}"))
    }

    fn unanswered() -> Self {
        Self::Unanswered
    }

    fn empty() -> Self {
        Self::Empty
    }

    fn shutdown() -> Self {
        Self::Closing
    }
}

fn seven() -> SmallVec<[RequestId; 1]> {
    smallvec![RequestId::from_number(7)]
}

fn silence(start: Instant) -> KeepAliveTimer {
    KeepAliveTimer::new(HELD, None, start)
}

/// An event stream that answers a call, as far as it has come.
fn events(start: Instant, so_far: &'static str) -> Subject {
    of_events(seven(), start, so_far)
}

fn of_events(waiting: SmallVec<[RequestId; 1]>, start: Instant, so_far: &'static str) -> Subject {
    let mut relay = ResponseRelay::for_events(ResponseTracker::new(waiting, 1024), silence(start));
    relay.handle_chunk(Bytes::from_static(so_far.as_bytes()), false);
    relay
}

fn document(start: Instant, so_far: &'static str) -> Subject {
    let mut relay = ResponseRelay::for_document(seven(), true, silence(start));
    relay.handle_chunk(Bytes::from_static(so_far.as_bytes()), false);
    relay
}

fn then(mut relay: Subject, steps: &[fn(&mut Subject)]) -> Subject {
    steps.iter().for_each(|step| step(&mut relay));
    relay
}

const BREAKS: fn(&mut Subject) = |r| r.handle_end(Some(Cut::Broken));
const ENDS: fn(&mut Subject) = |r| r.handle_end(None);
const OWED: fn(&mut Subject) = |r| r.handle_unanswered(seven());

const CUT: &str = "id: e1\n\nid: e2\ndata: {\"id\":7,\"result\":";

/// Each phase, and how an answer gets there.
const PHASES: [(&str, Make); 15] = [
    ("events", |start| events(start, "")),
    ("events with ids", |start| events(start, PRIMING)),
    ("within an event", |start| events(start, CUT)),
    ("answered", |start| events(start, RESULT)),
    ("nobody waits", |start| of_events(SmallVec::new(), start, PRIMING)),
    ("settling", |start| then(events(start, ""), &[ENDS])),
    ("settling, to go on", |start| then(events(start, PRIMING), &[BREAKS])),
    ("taking up", |start| then(events(start, PRIMING), &[BREAKS, OWED])),
    ("taking up, cut", |start| then(events(start, CUT), &[BREAKS, OWED])),
    ("refused", |start| {
        then(events(start, PRIMING), &[BREAKS, OWED, |r| r.handle_resumed(Err(Cut::Broken))])
    }),
    ("taken up, cut", |start| then(events(start, CUT), &[BREAKS, OWED, |r| r.handle_resumed(Ok(()))])),
    ("document", |start| document(start, "")),
    ("document, begun", |start| document(start, "{\"id\":7,")),
    ("document, an error", |start| document(start, "{\"id\":7,\"error\":{}}")),
    ("over", |start| then(events(start, RESULT), &[ENDS])),
];

const EVENTS: [(&str, Step); 20] = [
    ("bytes", |r, _| r.handle_chunk(Bytes::from_static(b": hi\n\n"), false)),
    ("nothing", |r, _| r.handle_chunk(Bytes::new(), false)),
    ("the last bytes", |r, _| r.handle_chunk(Bytes::from_static(b": hi\n\n"), true)),
    ("the response", |r, _| r.handle_chunk(Bytes::from_static(RESULT.as_bytes()), false)),
    ("the last response", |r, _| r.handle_chunk(Bytes::from_static(RESULT.as_bytes()), true)),
    ("an error", |r, _| r.handle_chunk(Bytes::from_static(b"data: {\"id\":7,\"error\":{}}\n\n"), false)),
    ("a tool's error", |r, _| {
        r.handle_chunk(Bytes::from_static(b"data: {\"id\":7,\"result\":{\"isError\":true}}\n\n"), false);
    }),
    ("ends", |r, _| r.handle_end(None)),
    ("breaks", |r, _| r.handle_end(Some(Cut::Broken))),
    ("takes too long", |r, _| r.handle_end(Some(Cut::TimedOut))),
    ("owed", |r, _| r.handle_unanswered(seven())),
    ("taken back", |r, _| r.handle_unanswered(SmallVec::new())),
    ("taken up", |r, _| r.handle_resumed(Ok(()))),
    ("not taken up", |r, _| r.handle_resumed(Err(Cut::TimedOut))),
    ("our own", |r, _| r.handle_own_event(Bytes::from_static(b"data: ours\n\n"))),
    ("too early", |r, start| r.handle_timeout(start)),
    ("a long silence", |r, start| r.handle_timeout(start + COMMENTS)),
    ("the deadline", |r, start| r.handle_timeout(start + DEADLINE)),
    ("stopping", |r, _| r.handle_shutdown()),
    ("departed", |r, _| r.handle_disconnect()),
];

#[test]
fn every_phase_meets_every_event() {
    let start = SystemClock::new().now();
    let mut table = String::new();
    for (phase, make) in PHASES {
        for (name, event) in EVENTS {
            let mut relay = make(start);
            while relay.poll_action().is_some() {}
            event(&mut relay, start);
            let actions: Vec<_> =
                std::iter::from_fn(|| relay.poll_action()).map(|action| shown(&action)).collect();
            let after = format!("{:?}", relay.phase());
            let due = relay.poll_timeout(|| start).map_or_else(String::new, |at| format!("{:?}", at - start));
            let speaks = if relay.can_insert() { "speaks" } else { "" };
            table +=
                &format!("{phase:18} | {name:17} | {after:8} {due:3} {speaks:6} | {}", actions.join(", "));
            table = table.trim_end().to_owned() + "\n";
        }
    }
    expect_test::expect_file!["../golden/relay.txt"].assert_eq(&table);
}

/// An action on one line.
fn shown(action: &RelayAction<Cut>) -> String {
    let error = |verdict: &RelayOutcome<Cut>| match verdict {
        RelayOutcome::Completed(said) => format!("{said:?}"),
        RelayOutcome::Resumable => "left".to_owned(),
        RelayOutcome::Cancelled => "departed".to_owned(),
        RelayOutcome::Lost(lost) => format!("lost: {lost:?}"),
        RelayOutcome::TimedOut(error) => format!("overdue: {}", error.code()),
    };
    let ids = |ids: &[RequestId]| ids.iter().map(|id| text(id.as_bytes())).collect::<Vec<_>>().join(" ");
    let behind = |anchor: &ResumePosition| {
        format!("{} {:?} {}", anchor.last_id.to_str().expect("ascii"), anchor.retry, anchor.fruitless_resumes)
    };
    match action {
        RelayAction::Send(bytes) => format!("Send {:?}", text(bytes)),
        RelayAction::SendAnswered(bytes, said) => format!("Answered {:?} {said:?}", text(bytes)),
        RelayAction::End(bytes, verdict) => format!("End {:?} {}", text(bytes), error(verdict)),
        RelayAction::Abort(verdict) => format!("Break {}", error(verdict)),
        RelayAction::ResolveUnanswered(waiting) => format!("Settle {}", ids(waiting)),
        RelayAction::Resume(from) => format!("TakeUp {}", behind(from)),
        RelayAction::KeepForResume(from, waiting) => format!("Leave {}: {}", behind(from), ids(waiting)),
        RelayAction::Release => "Release".to_owned(),
        RelayAction::Cancel => "Cancel".to_owned(),
        RelayAction::CancelOverdue => "GiveUp".to_owned(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("utf-8")
}

// === what holds whatever happens ===

/// What happens to an answer whose server keeps all its events.
#[derive(Clone, Debug)]
enum Op {
    /// So many bytes more come.
    Chunk(usize),
    /// Something of ours is to be said.
    Own,
    Passes(u64),
    Breaks,
    Ends,
    /// What is waited for is found out: whether the client still waits, whether the server goes on.
    Settles(bool),
    TakenUp(bool),
    Stops,
    Departs,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (1usize..60).prop_map(Op::Chunk),
        3 => Just(Op::Own),
        3 => (1u64..8).prop_map(Op::Passes),
        3 => Just(Op::Breaks),
        6 => prop::bool::weighted(0.9).prop_map(Op::Settles),
        6 => prop::bool::weighted(0.8).prop_map(Op::TakenUp),
        1 => Just(Op::Ends),
        1 => Just(Op::Stops),
        1 => Just(Op::Departs),
    ];
    prop::collection::vec(op, 0..80)
}

/// A server's events; the last answers.
fn served(line_end: &str) -> Vec<String> {
    let event = |number: usize| {
        let data = match number {
            0 => String::new(),
            9 => "{\"id\":7,\"result\":{\"n\":9}}".to_owned(),
            _ => format!("{{\"method\":\"m\",\"params\":{{\"n\":{number}}}}}"),
        };
        format!("id: e{number}{line_end}data: {data}{line_end}{line_end}")
    };
    (0..10).map(event).collect()
}

/// What has come of one answer.
#[derive(Default)]
struct Seen {
    sent: Vec<u8>,
    /// How it has ended.
    ends: usize,
    last: Option<RelayOutcome<Cut>>,
    left: Option<String>,
    taken_up_from: Option<usize>,
    /// What was sent behind the end.
    late: usize,
}

impl Seen {
    /// Takes all actions; `chunk` is what the server has just said.
    fn drain(&mut self, relay: &mut Subject, chunk: Option<&Bytes>) {
        while let Some(action) = relay.poll_action() {
            self.late += usize::from(self.ends > 0);
            let (bytes, verdict) = match action {
                RelayAction::Send(bytes) | RelayAction::SendAnswered(bytes, _) => (bytes, None),
                RelayAction::End(bytes, verdict) => (bytes, Some(verdict)),
                RelayAction::Abort(verdict) => (Bytes::new(), Some(verdict)),
                RelayAction::Resume(from) => {
                    let id = from.last_id.to_str().expect("ascii").to_owned();
                    self.taken_up_from = id.strip_prefix('e').and_then(|number| number.parse().ok());
                    continue;
                }
                RelayAction::KeepForResume(from, _) => {
                    self.left = Some(from.last_id.to_str().expect("ascii").to_owned());
                    continue;
                }
                RelayAction::ResolveUnanswered(_)
                | RelayAction::Release
                | RelayAction::Cancel
                | RelayAction::CancelOverdue => continue,
            };
            if let Some(chunk) = chunk {
                assert_eq!(bytes.as_ptr(), chunk.as_ptr(), "the server's bytes are not copied");
            }
            self.sent.extend_from_slice(&bytes);
            if let Some(verdict) = verdict {
                self.ends += 1;
                self.last = Some(verdict);
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_inserted_within_an_event(ops in ops(), crlf in any::<bool>()) {
        let start = SystemClock::new().now();
        let mut now = start;
        let served = served(if crlf { "\r\n" } else { "\n" });
        // What is still to come by this connection.
        let mut coming = Bytes::from(served.concat());
        let mut relay = ResponseRelay::for_events(ResponseTracker::new(seven(), 1024), silence(start));
        let mut seen = Seen::default();
        let mut own = 0;
        for op in ops {
            let phase = relay.phase();
            match op {
                Op::Chunk(count) if phase == RelayPhase::Flowing => {
                    let chunk = coming.split_to(count.min(coming.len()));
                    relay.handle_chunk(chunk.clone(), false);
                    seen.drain(&mut relay, Some(&chunk));
                }
                Op::Own => {
                    own += usize::from(relay.can_insert());
                    relay.handle_own_event(Bytes::from_static(b"data: ours\n\n"));
                }
                Op::Passes(seconds) => {
                    now += Duration::from_secs(seconds);
                    if relay.poll_timeout(|| now).is_some_and(|due| due <= now) {
                        relay.handle_timeout(now);
                    }
                }
                Op::Breaks if phase == RelayPhase::Flowing => relay.handle_end(Some(Cut::Broken)),
                Op::Ends if phase == RelayPhase::Flowing => relay.handle_end(None),
                Op::Settles(owed) => relay.handle_unanswered(if owed { seven() } else { SmallVec::new() }),
                Op::TakenUp(goes_on) if phase == RelayPhase::Resuming => {
                    let from = seen.taken_up_from.expect("it is said from where");
                    coming = Bytes::from(served[from + 1..].concat());
                    relay.handle_resumed(if goes_on { Ok(()) } else { Err(Cut::Broken) });
                }
                Op::Stops => relay.handle_shutdown(),
                Op::Departs => relay.handle_disconnect(),
                Op::Chunk(_) | Op::Breaks | Op::Ends | Op::TakenUp(_) => {}
            }
            seen.drain(&mut relay, None);
        }
        prop_assert!(seen.ends <= 1 && seen.late == 0, "one outcome, and nothing behind it");
        let mut decoder = EventDecoder::new(1 << 20);
        decoder.feed(Bytes::from(seen.sent));
        let (mut events, mut ours, mut errors, mut last_id) = (Vec::new(), 0, 0, None);
        while let Some(event) = decoder.next_event().expect("small") {
            last_id = event.id.clone().or(last_id);
            match (event.event.as_deref(), &event.data[..]) {
                (Some("incomplete"), _) => {}
                (_, b"ours") => ours += 1,
                (Some("message"), data) => {
                    prop_assert!(text(data).contains("\"error\""), "{}", text(data));
                    errors += 1;
                }
                (_, data) => events.push(text(data)),
            }
        }
        let all: Vec<_> = served.iter().filter_map(|event| {
            Some(event.split_once("data: ")?.1.trim_end().to_owned())
        }).collect();
        // A priming event has no data, so that readers may pass over it.
        let all = &all[1..];
        let events: Vec<_> = events.into_iter().filter(|event| !event.is_empty()).collect();
        prop_assert_eq!(&events[..], &all[..events.len()], "each once, in their order");
        prop_assert_eq!(ours, own);
        let is_error = matches!(seen.last, Some(RelayOutcome::Lost(_) | RelayOutcome::TimedOut(_)));
        let answered = events.len() == all.len();
        prop_assert_eq!(errors, usize::from(is_error && !answered));
        if let Some(left) = seen.left {
            prop_assert_eq!(Some(left), last_id, "who comes back does so from where it was left");
        }
    }
}
