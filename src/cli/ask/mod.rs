//! Input responses during a call: from the command line, or from the user.
//!
//! Options are used first. Other input requests are shown on standard error and answered on standard input,
//! if both are terminals or `--ask` is set. The client declares only the capabilities for which it can
//! respond, so that a server sends no request that cannot be answered.
//!
//! [`InputResponder`] goes through the input requests, `prompt` asks the user, `form` parses form fields, and
//! `terminal` reads lines.

mod form;
mod prompt;
mod terminal;

pub use terminal::InputClosed;

use super::printer::{self, Printer, inline};
use crate::{
    bridge::elicit,
    client::{ClientSupport, InputResponseMap, RequestedInput},
    config::values::InvalidValue,
    protocol::{InputKind, InputRequest, splice::JsonObject},
};
use bytes::Bytes;
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    io::{self, BufReader, IsTerminal},
    path::Path,
};
use terminal::Terminal;

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input requests of the server")]
pub struct AnswerArgs {
    /// Response to the input request with this key: the content of a form, a whole response, or accept, decline or cancel.
    /// May be repeated.
    #[arg(long = "answer", value_name = "KEY=JSON", value_parser = given)]
    answers: Vec<(String, AnswerOption)>,
    /// Response to every sampling request, as a model would write it.
    #[arg(long, value_name = "TEXT|@FILE", value_parser = text_or_file)]
    sampling: Option<String>,
    /// Directory to return when the server requests roots, as in file:///home/ada. May be
    /// repeated.
    #[arg(long = "root", value_name = "URI", value_parser = root)]
    roots: Vec<String>,
    /// Prompt on standard error and read answers from standard input, even if they are not
    /// terminals.
    #[arg(long)]
    ask: bool,
    /// Never prompt, even on a terminal.
    #[arg(long, conflicts_with = "ask")]
    no_ask: bool,
}

/// A response given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AnswerOption {
    /// An elicitation action without content.
    Action(String),
    /// A JSON object: a whole response, or the content of a form.
    Object(Bytes),
}

/// Responds to the input requests of one call.
pub struct InputResponder {
    /// Responses from `--answer`, by the key of their request. Each is used once; a key may have several, for
    /// repeated requests.
    given: BTreeMap<String, VecDeque<AnswerOption>>,
    /// Response to every sampling request (`--sampling`).
    sampling: Option<String>,
    /// Response to every request of roots (`--root`); empty if not given.
    roots: Vec<String>,
    /// The user, if input requests may be shown and answered on the terminal.
    person: Option<Terminal>,
    /// The current directory as a file URI, if the user is at a terminal: the default response to a request
    /// of roots.
    current_dir: Option<String>,
    /// Text that names the tool and the server, shown to the user.
    requester: String,
}

/// Error of input requests that cannot be answered, so that the call cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ResponderError {
    #[error("the server requests input, and no answers are available{}", list(.0))]
    NoAnswers(Vec<RequestedInput>),
    #[error("the response to `{key}` is not valid: {source}")]
    InvalidResponse { key: String, source: elicit::InvalidAnswer },
    #[error("this client does not support input requests of the method `{method}` (`{key}`)")]
    UnsupportedMethod { key: String, method: String },
    #[error("this client does not support elicitation mode `{0}`")]
    UnsupportedMode(String),
    #[error("declined; the call was cancelled")]
    Declined,
    #[error(transparent)]
    InputClosed(#[from] InputClosed),
}

// === impl InputResponder ===

impl InputResponder {
    /// Creates a responder. `requester` names the tool and the server.
    pub fn new(args: AnswerArgs, who: String) -> Self {
        let at_terminal = || io::stdin().is_terminal() && printer::is_terminal();
        let asks = args.ask || (!args.no_ask && at_terminal());
        let person = asks.then(|| Terminal::new(BufReader::new(io::stdin()), Printer::standard()));
        let here = asks && at_terminal();
        let here = here.then(env::current_dir).and_then(Result::ok).and_then(|here| file_uri(&here));
        Self { current_dir: here, ..Self::with(args, who, person) }
    }

    fn with(args: AnswerArgs, who: String, person: Option<Terminal>) -> Self {
        let mut given: BTreeMap<_, VecDeque<_>> = BTreeMap::new();
        for (key, answer) in args.answers {
            given.entry(key).or_default().push_back(answer);
        }
        Self { given, sampling: args.sampling, roots: args.roots, person, current_dir: None, requester: who }
    }

    /// Returns the capabilities to declare: those for which there are responses, and tasks if `tasks`. A
    /// response given by key could be for any kind of request.
    pub fn declared(&self, tasks: bool) -> ClientSupport {
        let anything = self.person.is_some() || !self.given.is_empty();
        ClientSupport {
            tasks,
            elicitation: anything,
            sampling: anything || self.sampling.is_some(),
            roots: anything || !self.roots.is_empty(),
        }
    }

    /// Returns the responses to all of these input requests, from the options or the user.
    ///
    /// # Errors
    /// [`ResponderError`] if a request has no valid response. The user is not asked if that is known
    /// beforehand.
    pub async fn answer(&mut self, questions: &[RequestedInput]) -> Result<InputResponseMap, ResponderError> {
        let mut known = Vec::with_capacity(questions.len());
        for RequestedInput { key, method, request } in questions {
            let unknown = || ResponderError::UnsupportedMethod { key: key.clone(), method: method.clone() };
            known.push((key, request.as_ref().ok_or_else(unknown)?));
        }
        if self.person.is_none() {
            let open =
                questions.iter().zip(&known).filter(|(_, (key, question))| !self.has_answer(key, question));
            let open: Vec<_> = open.map(|(asked, _)| asked.clone()).collect();
            if !open.is_empty() {
                return Err(ResponderError::NoAnswers(open));
            }
        }
        let mut answers = InputResponseMap::new();
        for (key, question) in known {
            let answer = match (self.take_option(key, question), &mut self.person) {
                (Some(answer), _) => answer,
                (None, Some(person)) => {
                    let who = format!("{} ({key})", self.requester);
                    prompt::ask(person, &who, question, self.current_dir.as_deref()).await?
                }
                (None, None) => unreachable!("missing responses have been reported above"),
            };
            elicit::check_input_response(question, &Bytes::copy_from_slice(answer.as_bytes()))
                .map_err(|source| ResponderError::InvalidResponse { key: key.clone(), source })?;
            let answer = RawValue::from_string(answer).expect("a validated response is JSON");
            answers.insert(key.clone(), answer);
        }
        Ok(answers)
    }

    /// Returns the keys of `--answer` options that were not used.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        self.given.iter().filter(|(_, answers)| !answers.is_empty()).map(|(key, _)| key.as_str())
    }

    fn has_answer(&self, key: &str, question: &InputRequest) -> bool {
        self.given.get(key).is_some_and(|answers| !answers.is_empty())
            || match question.kind() {
                InputKind::Elicitation => false,
                InputKind::Sampling => self.sampling.is_some(),
                InputKind::Roots => !self.roots.is_empty(),
            }
    }

    fn take_option(&mut self, key: &str, question: &InputRequest) -> Option<String> {
        if let Some(given) = self.given.get_mut(key).and_then(VecDeque::pop_front) {
            return Some(given.into_response(question));
        }
        match question.kind() {
            InputKind::Elicitation => None,
            InputKind::Sampling => self.sampling.as_deref().map(prompt::message),
            InputKind::Roots => {
                Some(&self.roots).filter(|roots| !roots.is_empty()).map(|roots| prompt::roots(roots))
            }
        }
    }
}

// === impl AnswerOption ===

impl AnswerOption {
    fn into_response(self, question: &InputRequest) -> String {
        let object = match self {
            Self::Action(action) => return format!(r#"{{"action":"{action}"}}"#),
            Self::Object(object) => object,
        };
        let raw = String::from_utf8_lossy(&object).into_owned();
        // A form may have a field `action`, but hardly with one of these values.
        let action = JsonObject::read(&object).ok().and_then(|object| object.string("action"));
        let is_answer = matches!(action.as_deref(), Some("accept" | "decline" | "cancel"));
        if question.kind() == InputKind::Elicitation && !is_answer {
            return format!(r#"{{"action":"accept","content":{raw}}}"#);
        }
        raw
    }
}

/// Lists the input requests, and how to respond to them.
fn list(questions: &[RequestedInput]) -> String {
    let line = |asked: &RequestedInput| {
        let message = asked.message().map(|message| format!(": {message}")).unwrap_or_default();
        format!("\n{}", inline(&format!("{} ({}){message}", asked.key, asked.method)))
    };
    questions.iter().map(line).collect::<String>()
        + "\nanswer with `--answer KEY=JSON`, `--sampling` or `--root`, or on a terminal (`--ask`)"
}

/// Parses `KEY=JSON`, the value of `--answer`.
fn given(text: &str) -> Result<(String, AnswerOption), InvalidValue> {
    let hint = "write KEY=JSON, as in 'elicitation-1={\"name\":\"Ada\"}' or elicitation-1=decline";
    let Some((key, answer)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
        return Err(InvalidValue(format!("`{text}` has no key; {hint}")));
    };
    if matches!(answer, "accept" | "decline" | "cancel") {
        return Ok((key.to_owned(), AnswerOption::Action(answer.to_owned())));
    }
    let raw = Bytes::copy_from_slice(answer.trim().as_bytes());
    match JsonObject::read(&raw) {
        Ok(_) => Ok((key.to_owned(), AnswerOption::Object(raw))),
        Err(_) => Err(InvalidValue(format!("`{answer}` is not a JSON object; {hint}"))),
    }
}

/// Parses a text, or `@` and the name of a file with the text.
fn text_or_file(text: &str) -> Result<String, InvalidValue> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    fs::read_to_string(path)
        .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
        .map_err(|error| InvalidValue(format!("cannot read `{path}`: {error}")))
}

/// Parses a root, which is a file URI (2026-07-28, *Roots, Data Types*).
fn root(text: &str) -> Result<String, InvalidValue> {
    let odd = |hint: String| Err(InvalidValue(format!("`{text}` is not a file URI; {hint}")));
    match text.strip_prefix("file://") {
        Some(path) if path.starts_with('/') && !path.contains(char::is_whitespace) => Ok(text.to_owned()),
        None if text.starts_with('/') => odd(format!("did you mean `file://{}`?", text.replace(' ', "%20"))),
        Some(_) | None => odd("write it as in `file:///home/ada/project`".to_owned()),
    }
}

/// Returns a directory as a file URI; `None` for a relative path.
fn file_uri(path: &Path) -> Option<String> {
    if !path.is_absolute() {
        return None;
    }
    let mut uri = String::from("file://");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input_request(key: &str, request: &str) -> RequestedInput {
        let raw = Bytes::copy_from_slice(request.as_bytes());
        let method = JsonObject::read(&raw).unwrap().string("method").unwrap();
        RequestedInput { key: key.into(), method, request: InputRequest::from_raw(raw) }
    }

    fn form() -> RequestedInput {
        input_request(
            "who",
            r#"{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}}"#,
        )
    }

    fn asker(words: &[&str], typed: Option<&'static str>) -> InputResponder {
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            args: AnswerArgs,
        }
        let args = <Words as clap::Parser>::parse_from([&["call"], words].concat()).args;
        let person = typed.map(|typed| Terminal::new(typed.as_bytes(), Printer::new(io::sink(), io::sink())));
        InputResponder::with(args, "tool".into(), person)
    }

    async fn answer(asker: &mut InputResponder, questions: &[RequestedInput]) -> Result<Vec<String>, String> {
        let answers = asker.answer(questions).await.map_err(|error| error.to_string())?;
        Ok(answers.iter().map(|(key, answer)| format!("{key}={answer}")).collect())
    }

    #[tokio::test]
    async fn options_respond_without_asking_the_user() {
        let questions = [
            form(),
            input_request(
                "url",
                r#"{"method":"elicitation/create","params":{"mode":"url","url":"https://x","message":"m"}}"#,
            ),
            input_request(
                "s",
                r#"{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}"#,
            ),
            input_request("r", r#"{"method":"roots/list"}"#),
        ];
        let words = [
            "--answer",
            r#"who={"name": "Ada"}"#,
            "--answer",
            "url=accept",
            "--sampling",
            "hi",
            "--root",
            "file:///a",
        ];
        let mut asker = asker(&words, None);
        assert_eq!(
            answer(&mut asker, &questions).await.unwrap(),
            [
                r#"r={"roots":[{"uri":"file:///a"}]}"#.to_owned(),
                format!("s={}", prompt::message("hi")),
                r#"url={"action":"accept"}"#.to_owned(),
                r#"who={"action":"accept","content":{"name": "Ada"}}"#.to_owned(),
            ]
        );
        assert_eq!(asker.unused().count(), 0);
    }

    #[tokio::test]
    async fn each_response_option_is_used_once_and_the_user_is_asked_for_the_rest() {
        let twice = ["--answer", r#"who={"name":"A"}"#, "--answer", r#"who={"action":"decline"}"#];
        let mut asker = asker(&twice, Some("Eve\n\n"));
        for expected in [
            r#"who={"action":"accept","content":{"name":"A"}}"#,
            r#"who={"action":"decline"}"#,
            r#"who={"action":"accept","content":{"name":"Eve"}}"#,
        ] {
            assert_eq!(answer(&mut asker, &[form()]).await.unwrap(), [expected]);
        }
    }

    #[tokio::test]
    async fn an_unanswerable_request_is_reported_with_the_options() {
        let roots = input_request("r", r#"{"method":"roots/list"}"#);
        let error = answer(&mut asker(&["--root", "file:///a"], None), &[roots, form()]).await.unwrap_err();
        assert_eq!(
            error,
            "the server requests input, and no answers are available\nwho (elicitation/create): Who?\nanswer with `--answer KEY=JSON`, `--sampling` or `--root`, or on a terminal (`--ask`)"
        );
        let mut wrong = asker(&["--answer", r#"who={"name":7}"#, "--answer", "other={}"], None);
        assert_eq!(
            answer(&mut wrong, &[form()]).await.unwrap_err(),
            "the response to `who` is not valid: `content.name` must be a string"
        );
        assert_eq!(wrong.unused().collect::<Vec<_>>(), ["other"]);
        let vendor = input_request("v", r#"{"method":"vendor/ask"}"#);
        assert_eq!(
            answer(&mut asker(&[], Some("\n")), &[vendor]).await.unwrap_err(),
            "this client does not support input requests of the method `vendor/ask` (`v`)"
        );
    }

    #[test]
    fn only_supported_capabilities_are_declared() {
        let declared = |words: &[&str], typed| {
            let ClientSupport { tasks, elicitation, sampling, roots } = asker(words, typed).declared(true);
            assert!(tasks);
            [elicitation, sampling, roots]
        };
        assert_eq!(declared(&[], None), [false; 3]);
        assert_eq!(declared(&[], Some("")), [true; 3]);
        assert_eq!(declared(&["--answer", "k={}"], None), [true; 3]);
        assert_eq!(declared(&["--sampling", "x"], None), [false, true, false]);
        assert_eq!(declared(&["--root", "file:///"], None), [false, false, true]);
    }

    #[test]
    fn options_are_checked_when_typed() {
        assert_eq!(given("k=decline"), Ok(("k".into(), AnswerOption::Action("decline".into()))));
        assert_eq!(given(r#"k={"a":"="}"#), Ok(("k".into(), AnswerOption::Object(r#"{"a":"="}"#.into()))));
        for wrong in ["k", "={}", "k=", "k=[1]", "k=yes", "k={"] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            root("/home/a b").unwrap_err().0,
            "`/home/a b` is not a file URI; did you mean `file:///home/a%20b`?"
        );
        assert!(root("file:///a").is_ok() && root("https://a/").is_err() && root("file://a").is_err());
        assert_eq!(file_uri(Path::new("/home/a b/ü")).as_deref(), Some("file:///home/a%20b/%C3%BC"));
        assert_eq!(file_uri(Path::new("a")), None);
        assert_eq!(text_or_file("a@b").as_deref(), Ok("a@b"));
        assert!(text_or_file("@no/such").unwrap_err().0.contains("cannot read `no/such`"));
    }
}
