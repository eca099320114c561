//! Twice the bytes take at most about twice the time, for each reader of received bytes.
//!
//! A reader that looks at what it has already seen makes a message of a few megabytes, which every
//! limit admits, hold a core for seconds. What is measured is the processor time of this one thread,
//! which others on the machine do not add to, and of several runs the least. A reader that takes
//! the square of its input needs four times as long for twice as much, and fails however often it is
//! measured.

use bytes::{Bytes, BytesMut};
use deferral::internals::{
    bridge::{ToolParamHeaders, elicit, offer},
    dialect::legacy::{LegacyPost, ResponseTracker},
    policy::{Mode, NamePattern},
    protocol::{
        Capabilities, Frame, InputRequest, MessageReader, ProgressHeartbeat, canonical,
        frame::{bracket_depth, to_single_line},
        glance::KindSniffer,
        headers::param_headers,
        splice::{JsonObject, ObjectEdit},
        sse::{EventDecoder, EventIdAssigner, EventSplitter, MessageFilter, ResponseEditor, StreamObserver},
        tool_result,
    },
    upstream::http1::{BodyFraming, BodyPart, HeadReader},
};
use rustix::time::{ClockId, clock_gettime};
use std::{hint::black_box, time::Duration};

/// The most that twice the input may take, in times of what the input takes.
const MOST: f64 = 2.3;

/// Each size is measured this often at least,
const RUNS: usize = 3;

/// and as often again as it takes to come near its true time on a busy machine, but not for longer
/// than this.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reads inputs of `parts` and of twice as many parts.
fn grows_with_its_input(reader: &str, parts: usize, input: impl Fn(usize) -> Bytes, read: impl Fn(&Bytes)) {
    let (one, two) = (input(parts), input(2 * parts));
    let (mut least_of_one, mut least_of_two, mut spent) = (Duration::MAX, Duration::MAX, Duration::ZERO);
    for run in 1.. {
        let (now_one, now_two) = (taken(|| read(&one)), taken(|| read(&two)));
        least_of_one = least_of_one.min(now_one);
        least_of_two = least_of_two.min(now_two);
        spent += now_one + now_two;
        if run >= RUNS && least_of_two.as_secs_f64() <= MOST * least_of_one.as_secs_f64() {
            return;
        }
        if run >= RUNS && spent > PATIENCE {
            break;
        }
    }
    panic!("{reader}: {} bytes took {least_of_one:?}, {} took {least_of_two:?}", one.len(), two.len());
}

/// The processor time that this thread spends on it.
fn taken(work: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("time is not negative");
    let began = now();
    work();
    now() - began
}

/// `before`, then so many parts with a comma between two, then `after`.
fn listed(before: &str, part: impl Fn(usize) -> String, after: &str) -> impl Fn(usize) -> Bytes {
    move |parts| {
        let parts: Vec<_> = (0..parts).map(&part).collect();
        format!("{before}{}{after}", parts.join(",")).into()
    }
}

/// So many parts behind each other, then `after`.
fn joined(part: &str, after: &str) -> impl Fn(usize) -> Bytes {
    move |parts| format!("{}{after}", part.repeat(parts)).into()
}

/// In pieces as small as a network makes them.
fn pieces(bytes: &Bytes) -> impl Iterator<Item = Bytes> {
    (0..bytes.len()).step_by(16).map(|at| bytes.slice(at..bytes.len().min(at + 16)))
}

#[test]
fn a_batch_of_many_requests_is_read_in_proportion() {
    let batch = || listed("[", |at| format!(r#"{{"id":{at},"method":"ping"}}"#), "]");
    grows_with_its_input("Post::waiting", 1_500, batch(), |body| {
        let waiting =
            LegacyPost::read(&mut MessageReader::new(body.clone())).expect("messages").request_ids();
        black_box(waiting.len());
    });
    let same = listed("[", |_| r#"{"id":1,"method":"ping"}"#.to_owned(), "]");
    grows_with_its_input("Post::waiting, of one id", 1_000, same, |body| {
        assert_eq!(
            LegacyPost::read(&mut MessageReader::new(body.clone())).expect("messages").request_ids().len(),
            1
        );
    });
    let cancel = |at| format!(r#"{{"method":"notifications/cancelled","params":{{"requestId":{at}}}}}"#);
    grows_with_its_input("Post::cancels", 500, listed("[", cancel, "]"), |body| {
        let post = LegacyPost::read(&mut MessageReader::new(body.clone())).expect("messages");
        black_box(post.cancelled_ids().count());
    });
    // Whatever is wrong with it.
    grows_with_its_input("Messages", 1_500, listed("[", |_| "[[1],{}]".to_owned(), ""), |body| {
        black_box(MessageReader::new(body.clone()).count());
    });
}

#[test]
fn answers_to_a_batch_are_seen_in_proportion() {
    // Answered from the last to the first, as a server may.
    let answered = |parts: usize| -> Bytes {
        let events = (0..parts).rev().map(|at| format!("data: {{\"id\":{at},\"result\":{{}}}}\n\n"));
        events.collect::<String>().into()
    };
    let asked = |stream: &Bytes| {
        let asked = stream.windows(2).filter(|pair| pair == b"\n\n").count();
        let batch = listed("[", |at| format!(r#"{{"id":{at},"method":"ping"}}"#), "]")(asked);
        LegacyPost::read(&mut MessageReader::new(batch)).expect("messages").request_ids()
    };
    grows_with_its_input("Answers", 1_000, answered, |stream| {
        let mut answers = ResponseTracker::new(asked(stream), 1 << 20);
        for chunk in pieces(stream) {
            assert!(answers.has_unanswered());
            answers.observe(&chunk);
        }
        assert!(!answers.has_unanswered());
    });
    grows_with_its_input("Answers::waiting", 1_000, answered, |stream| {
        let waiting = asked(stream);
        let mut answers = ResponseTracker::new(waiting.clone(), 1 << 20);
        answers.observe(&stream.slice(..stream.len() / 2));
        answers.retain_unanswered(answers.unanswered());
        assert!(!answers.unanswered().is_empty() && answers.unanswered().len() < waiting.len());
    });
}

#[test]
fn an_event_that_comes_in_small_pieces_is_read_in_proportion() {
    for (kind, stream) in [
        ("one long line", joined("data of an event", "\n\n")),
        ("many lines", joined("data:x\n", "\n")),
        ("many lines that end in CR LF", joined("data:x\r\n", "\r\n")),
        ("comments", joined(":x\r", "\r")),
        ("many events", joined("data:x\n\n", "")),
    ] {
        grows_with_its_input(&format!("Cutter, {kind}"), 5_000, &stream, |stream| {
            let mut cutter = EventSplitter::new(1 << 30);
            for chunk in pieces(stream) {
                cutter.feed(chunk);
                while cutter.next_piece().is_some() {}
            }
        });
        grows_with_its_input(&format!("Editor, {kind}"), 2_000, &stream, |stream| {
            let mut editor = ResponseEditor::new(1 << 30);
            pieces(stream).for_each(|chunk| drop(editor.feed(chunk, |_| None)));
        });
        grows_with_its_input(&format!("Sieve, {kind}"), 2_000, &stream, |stream| {
            let mut sieve = MessageFilter::new(1 << 30);
            pieces(stream).for_each(|chunk| drop(sieve.feed(chunk, || true, |_| false)));
        });
        grows_with_its_input(&format!("Minter, {kind}"), 2_000, &stream, |stream| {
            let mut minter = EventIdAssigner::new([7; 16], true, 1 << 30);
            pieces(stream).for_each(|chunk| drop(minter.feed(chunk)));
        });
        grows_with_its_input(&format!("Decoder, {kind}"), 2_000, &stream, |stream| {
            let mut decoder = EventDecoder::new(1 << 30);
            for chunk in pieces(stream) {
                decoder.feed(chunk);
                while decoder.next_event().expect("it is not too large").is_some() {}
            }
        });
        grows_with_its_input(&format!("Watch, {kind}"), 2_000, &stream, |stream| {
            let mut watch = StreamObserver::collecting_messages();
            for chunk in pieces(stream) {
                watch.observe(&chunk);
                black_box(watch.take_messages());
            }
        });
    }
}

#[test]
fn an_answer_that_comes_in_small_pieces_is_read_in_proportion() {
    // As long as a head, a line between two chunks and the trailers may be.
    let within = |before: &'static str, part: &'static str, after: &'static str| {
        move |parts: usize| Bytes::from(format!("{before}{}{after}", part.repeat(parts * 30 / part.len())))
    };
    for (kind, answer) in [
        ("a long line", within("HTTP/1.1 200 OK\r\nx: ", "y", "\r\n\r\n")),
        ("empty lines before it", within("", "\r\n", "HTTP/1.1 200 OK\r\n\r\n")),
        ("others before it", within("", "HTTP/1.1 102 Processing\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n")),
    ] {
        grows_with_its_input(&format!("head, {kind}"), 1_000, answer, |answer| {
            let (mut reader, mut read) = (HeadReader::default(), BytesMut::new());
            let heads = pieces(answer).filter_map(|piece| {
                read.extend_from_slice(&piece);
                reader.next(&mut read).expect("it is one")
            });
            assert_eq!(heads.count(), 1);
        });
    }
    let chunked = || {
        let head = http::Response::builder().header("transfer-encoding", "chunked").body(());
        BodyFraming::from_head(&head.expect("a head")).expect("chunks")
    };
    for (kind, body) in [
        ("the extension of a chunk", within("5;", "x", "\r\nhello\r\n0\r\n\r\n")),
        ("a long trailer", within("0\r\nx: ", "y", "\r\n\r\n")),
        ("many trailers", within("0\r\n", "x: y\r\n", "\r\n")),
        ("many chunks", within("", "5\r\nhello\r\n", "0\r\n\r\n")),
    ] {
        grows_with_its_input(&format!("Framing, {kind}"), 1_000, body, |body| {
            let (mut framing, mut read) = (chunked(), BytesMut::new());
            for piece in pieces(body) {
                read.extend_from_slice(&piece);
                while let BodyPart::Data(data) = framing.next(&mut read).expect("a body") {
                    black_box(data);
                }
            }
            assert_eq!(framing, BodyFraming::Ended);
        });
    }
}

#[test]
fn a_message_of_many_parts_is_read_in_proportion() {
    let members = || listed("{", |at| format!(r#""key{at}":{at}"#), "}");
    let request = || {
        listed(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"#,
            |at| format!(r#""key{at}":{at}"#),
            "}}",
        )
    };
    let nested = |parts: usize| Bytes::from(format!("{}{}", "[".repeat(parts), "]".repeat(parts)));
    grows_with_its_input("Frame::parse", 2_000, request(), |message| {
        black_box(Frame::parse(message.clone()).expect("a message"));
    });
    grows_with_its_input("Glance", 2_000, request(), |message| {
        let mut glance = KindSniffer::default();
        pieces(&message.slice(10..)).for_each(|piece| glance.feed(&piece));
    });
    grows_with_its_input("brackets", 30_000, nested, |json| {
        black_box(bracket_depth(json));
    });
    grows_with_its_input("on_one_line", 30_000, joined("{\n", ""), |json| {
        black_box(to_single_line(json.clone()));
    });
    grows_with_its_input("Object", 2_000, members(), |json| {
        let object = JsonObject::read(json).expect("an object");
        assert!(object.repeated_key().is_none() && object.get("key1").is_some() && !object.contains("k"));
        let mut edit = ObjectEdit::new(&object);
        edit.set("key1", "7").remove("key2").set("more", "8");
        black_box(edit.apply());
    });
    grows_with_its_input("canonical::value", 2_000, members(), |json| {
        black_box(canonical::canonicalize(json));
    });
    // The deepest that is understood, sorted anew on each level.
    let sorted = |parts: usize| {
        let level = format!(r#"{{"b":[{}0],"a":"#, "0,".repeat(parts));
        Bytes::from(format!("{}0{}", level.repeat(100), "}".repeat(100)))
    };
    grows_with_its_input("canonical::value, nested", 20, sorted, |json| {
        black_box(canonical::canonicalize(json));
    });
    // As many as fit.
    grows_with_its_input("Capabilities::read", 500, members(), |json| {
        black_box(Capabilities::read(json.clone()).expect("an object"));
    });
    grows_with_its_input("Heartbeat::see", 2_000, request(), |message| {
        ProgressHeartbeat::new(Bytes::from_static(b"1"), true).observe(message);
    });
}

#[test]
fn tools_and_input_requests_of_a_server_are_read_in_proportion() {
    let property = |at| format!(r#""p{at}":{{"type":"string","x-mcp-header":"H{at}"}}"#);
    let schema = || listed(r#"{"type":"object","properties":{"#, property, "}}");
    grows_with_its_input("param_headers", 300, schema(), |schema| {
        assert!(!param_headers(schema).is_empty());
    });
    let tool = |at| format!(r#"{{"name":"tool{at}","inputSchema":{{"type":"object"}}}}"#);
    let tools = || listed(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":["#, tool, "]}}");
    grows_with_its_input("offer::tools", 300, tools(), |answer| {
        let frame = Frame::parse(answer.clone()).expect("a message");
        black_box(offer::edit_tool_list(&frame, |_| Mode::Auto).expect("it is changed"));
    });
    let page = listed(r#"{"tools":["#, tool, "]}");
    grows_with_its_input("Catalogue::add_page", 300, page, |page| {
        ToolParamHeaders::default().add_page(page, |_| ()).expect("a page");
    });
    let blocks = listed(r#"{"content":["#, |_| r#"{"type":"text","text":" "}"#.to_owned(), "]}");
    grows_with_its_input("tool_result::words", 500, blocks, |result| {
        assert_eq!((tool_result::first_text(result), tool_result::is_error(result)), (None, false));
    });
}

#[test]
fn a_rule_is_matched_in_proportion() {
    let pattern = NamePattern::new("*a*aa*ab?");
    grows_with_its_input("Pattern::matches", 2_000, joined("aab", "cc"), |name| {
        assert!(!pattern.matches(std::str::from_utf8(name).expect("text")));
    });
}

#[test]
fn an_answer_to_a_form_is_checked_in_proportion() {
    let question = |properties: &str| {
        let raw = format!(
            r#"{{"method":"elicitation/create","params":{{"mode":"form","message":"?","requestedSchema":{{"type":"object",{properties}}}}}}}"#
        );
        InputRequest::from_raw(raw.into()).expect("a question")
    };
    let answered = |content: &str| Bytes::from(format!(r#"{{"action":"accept","content":{{{content}}}}}"#));
    // Both the question and its answer grow: a choice of many, answered at length.
    let choice = |parts: usize| {
        let choices: Vec<_> = (0..parts).map(|at| format!(r#""choice{at}""#)).collect();
        Bytes::from(choices.join(","))
    };
    grows_with_its_input("check_answer, a choice", 500, choice, |choices| {
        let choices = std::str::from_utf8(choices).expect("text");
        let asked = question(&format!(r#""properties":{{"a":{{"enum":[{choices}]}}}}"#));
        let long = choices.replace('"', "");
        assert!(elicit::check_input_response(&asked, &answered(&format!(r#""a":"{long}""#))).is_err());
    });
    let members = |parts: usize| {
        let members: Vec<_> = (0..parts).map(|at| format!(r#""m{at}""#)).collect();
        Bytes::from(members.join(","))
    };
    grows_with_its_input("check_answer, many members", 300, members, |names| {
        let names = std::str::from_utf8(names).expect("text");
        let types: Vec<_> = names.split(',').map(|name| format!(r#"{name}:{{"type":["null"]}}"#)).collect();
        let asked = question(&format!(r#""properties":{{{}}},"required":[{names}]"#, types.join(",")));
        let nulls: Vec<_> = names.split(',').map(|name| format!("{name}:null")).collect();
        assert!(elicit::check_input_response(&asked, &answered(&nulls.join(","))).is_ok());
    });
}
