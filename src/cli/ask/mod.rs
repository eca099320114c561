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

use super::printer::{self, Printer, to_single_line};
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
    #[arg(long = "answer", value_name = "KEY=JSON", value_parser = parse_answer)]
    answers: Vec<(String, AnswerOption)>,
    /// Response to every sampling request, as a model would write it: the text, or @ and the name of a file that contains it.
    #[arg(long, value_name = "TEXT|@FILE", value_parser = parse_text_or_file)]
    sampling: Option<String>,
    /// Directory to return when the server requests roots, as in file:///home/ada. May be repeated.
    #[arg(long = "root", value_name = "URI", value_parser = parse_root)]
    roots: Vec<String>,
    /// Prompt on standard error and read answers from standard input, even if they are not terminals.
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
    options: BTreeMap<String, VecDeque<AnswerOption>>,
    /// Response to every sampling request (`--sampling`).
    sampling: Option<String>,
    /// Response to every request of roots (`--root`); empty if not given.
    roots: Vec<String>,
    /// The user, if input requests may be shown and answered on the terminal.
    user: Option<Terminal>,
    /// The current directory as a file URI, if the user is at a terminal: the default response to a request
    /// of roots.
    current_dir: Option<String>,
    /// Text that names the tool and the server, shown to the user.
    requester: String,
}

/// Error of input requests that cannot be answered, so that the call cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ResponderError {
    #[error("the server requests input, and no answers are available{}", describe_requests(.0))]
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
    pub fn new(args: AnswerArgs, requester: String) -> Self {
        let at_terminal = || io::stdin().is_terminal() && printer::is_error_terminal();
        let can_ask = args.ask || (!args.no_ask && at_terminal());
        let user = can_ask.then(|| Terminal::new(BufReader::new(io::stdin()), Printer::standard()));
        let has_current_dir = can_ask && at_terminal();
        let current_dir =
            has_current_dir.then(env::current_dir).and_then(Result::ok).and_then(|here| file_uri(&here));
        Self { current_dir, ..Self::from_args(args, requester, user) }
    }

    fn from_args(args: AnswerArgs, requester: String, user: Option<Terminal>) -> Self {
        let mut options: BTreeMap<_, VecDeque<_>> = BTreeMap::new();
        for (key, answer) in args.answers {
            options.entry(key).or_default().push_back(answer);
        }
        Self { options, sampling: args.sampling, roots: args.roots, user, current_dir: None, requester }
    }

    /// Returns the capabilities to declare: those for which there are responses, and tasks if `tasks`. A
    /// response given by key could be for any kind of request.
    pub fn declared_support(&self, tasks: bool) -> ClientSupport {
        let can_answer_any = self.user.is_some() || !self.options.is_empty();
        ClientSupport {
            tasks,
            elicitation: can_answer_any,
            sampling: can_answer_any || self.sampling.is_some(),
            roots: can_answer_any || !self.roots.is_empty(),
        }
    }

    /// Returns the responses to all of these input requests, from the options or the user.
    ///
    /// # Errors
    /// [`ResponderError`] if a request has no valid response. The user is not asked if that is known
    /// beforehand.
    pub async fn respond(&mut self, requests: &[RequestedInput]) -> Result<InputResponseMap, ResponderError> {
        let mut supported = Vec::with_capacity(requests.len());
        for RequestedInput { key, method, request } in requests {
            let unknown = || ResponderError::UnsupportedMethod { key: key.clone(), method: method.clone() };
            supported.push((key, request.as_ref().ok_or_else(unknown)?));
        }
        if self.user.is_none() {
            let unanswerable = requests
                .iter()
                .zip(&supported)
                .filter(|(_, (key, question))| !self.has_option(key, question));
            let unanswerable: Vec<_> = unanswerable.map(|(request, _)| request.clone()).collect();
            if !unanswerable.is_empty() {
                return Err(ResponderError::NoAnswers(unanswerable));
            }
        }
        let mut responses = InputResponseMap::new();
        for (key, request) in supported {
            let response = match (self.take_option(key, request), &mut self.user) {
                (Some(answer), _) => answer,
                (None, Some(user)) => {
                    let requester = format!("{} ({key})", self.requester);
                    prompt::ask(user, &requester, request, self.current_dir.as_deref()).await?
                }
                (None, None) => unreachable!("missing responses have been reported above"),
            };
            elicit::check_input_response(request, &Bytes::copy_from_slice(response.as_bytes()))
                .map_err(|source| ResponderError::InvalidResponse { key: key.clone(), source })?;
            let response = RawValue::from_string(response).expect("a validated response is JSON");
            responses.insert(key.clone(), response);
        }
        Ok(responses)
    }

    /// Returns the keys of `--answer` options that were not used.
    pub fn unused_keys(&self) -> impl Iterator<Item = &str> {
        self.options.iter().filter(|(_, answers)| !answers.is_empty()).map(|(key, _)| key.as_str())
    }

    fn has_option(&self, key: &str, request: &InputRequest) -> bool {
        self.options.get(key).is_some_and(|answers| !answers.is_empty())
            || match request.kind() {
                InputKind::Elicitation => false,
                InputKind::Sampling => self.sampling.is_some(),
                InputKind::Roots => !self.roots.is_empty(),
            }
    }

    fn take_option(&mut self, key: &str, request: &InputRequest) -> Option<String> {
        if let Some(option) = self.options.get_mut(key).and_then(VecDeque::pop_front) {
            return Some(option.into_response(request));
        }
        match request.kind() {
            InputKind::Elicitation => None,
            InputKind::Sampling => self.sampling.as_deref().map(prompt::sampling_response),
            InputKind::Roots => {
                Some(&self.roots).filter(|roots| !roots.is_empty()).map(|roots| prompt::roots_response(roots))
            }
        }
    }
}

// === impl AnswerOption ===

impl AnswerOption {
    fn into_response(self, request: &InputRequest) -> String {
        let object = match self {
            Self::Action(action) => return format!(r#"{{"action":"{action}"}}"#),
            Self::Object(object) => object,
        };
        let raw = String::from_utf8_lossy(&object).into_owned();
        // A form may have a field `action`, but hardly with one of these values.
        let action = JsonObject::read(&object).ok().and_then(|object| object.string("action"));
        let is_whole_response = matches!(action.as_deref(), Some("accept" | "decline" | "cancel"));
        if request.kind() == InputKind::Elicitation && !is_whole_response {
            return format!(r#"{{"action":"accept","content":{raw}}}"#);
        }
        raw
    }
}

/// Lists the input requests, and how to respond to them.
fn describe_requests(requests: &[RequestedInput]) -> String {
    let line = |request: &RequestedInput| {
        let message = request.message().map(|message| format!(": {message}")).unwrap_or_default();
        format!("\n{}", to_single_line(&format!("{} ({}){message}", request.key, request.method)))
    };
    requests.iter().map(line).collect::<String>()
        + "\nanswer with `--answer KEY=JSON`, `--sampling` or `--root`, or on a terminal (`--ask`)"
}

/// Parses `KEY=JSON`, the value of `--answer`.
fn parse_answer(text: &str) -> Result<(String, AnswerOption), InvalidValue> {
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
fn parse_text_or_file(text: &str) -> Result<String, InvalidValue> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    fs::read_to_string(path)
        .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
        .map_err(|error| InvalidValue(format!("cannot read `{path}`: {error}")))
}

/// Parses a root, which is a file URI (2026-07-28, *Roots, Data Types*).
fn parse_root(text: &str) -> Result<String, InvalidValue> {
    let invalid = |hint: String| Err(InvalidValue(format!("`{text}` is not a file URI; {hint}")));
    match text.strip_prefix("file://") {
        Some(path) if path.starts_with('/') && !path.contains(char::is_whitespace) => Ok(text.to_owned()),
        None if text.starts_with('/') => {
            invalid(format!("did you mean `file://{}`?", text.replace(' ', "%20")))
        }
        Some(_) | None => invalid("write it as in `file:///home/ada/project`".to_owned()),
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

    fn responder(words: &[&str], typed: Option<&'static str>) -> InputResponder {
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            args: AnswerArgs,
        }
        let args = <Words as clap::Parser>::parse_from([&["call"], words].concat()).args;
        let person = typed.map(|typed| Terminal::new(typed.as_bytes(), Printer::new(io::sink(), io::sink())));
        InputResponder::from_args(args, "tool".into(), person)
    }

    async fn answer(asker: &mut InputResponder, questions: &[RequestedInput]) -> Result<Vec<String>, String> {
        let answers = asker.respond(questions).await.map_err(|error| error.to_string())?;
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
        let mut asker = responder(&words, None);
        assert_eq!(
            answer(&mut asker, &questions).await.unwrap(),
            [
                r#"r={"roots":[{"uri":"file:///a"}]}"#.to_owned(),
                format!("s={}", prompt::sampling_response("hi")),
                r#"url={"action":"accept"}"#.to_owned(),
                r#"who={"action":"accept","content":{"name": "Ada"}}"#.to_owned(),
            ]
        );
        assert_eq!(asker.unused_keys().count(), 0);
    }

    #[tokio::test]
    async fn each_response_option_is_used_once_and_the_user_is_asked_for_the_rest() {
        let twice = ["--answer", r#"who={"name":"A"}"#, "--answer", r#"who={"action":"decline"}"#];
        let mut asker = responder(&twice, Some("Eve\n\n"));
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
        let error =
            answer(&mut responder(&["--root", "file:///a"], None), &[roots, form()]).await.unwrap_err();
        assert_eq!(
            error,
            "the server requests input, and no answers are available\nwho (elicitation/create): Who?\nanswer with `--answer KEY=JSON`, `--sampling` or `--root`, or on a terminal (`--ask`)"
        );
        let mut wrong = responder(&["--answer", r#"who={"name":7}"#, "--answer", "other={}"], None);
        assert_eq!(
            answer(&mut wrong, &[form()]).await.unwrap_err(),
            "the response to `who` is not valid: `content.name` must be a string"
        );
        assert_eq!(wrong.unused_keys().collect::<Vec<_>>(), ["other"]);
        let vendor = input_request("v", r#"{"method":"vendor/ask"}"#);
        assert_eq!(
            answer(&mut responder(&[], Some("\n")), &[vendor]).await.unwrap_err(),
            "this client does not support input requests of the method `vendor/ask` (`v`)"
        );
    }

    #[test]
    fn only_supported_capabilities_are_declared() {
        let declared = |words: &[&str], typed| {
            let ClientSupport { tasks, elicitation, sampling, roots } =
                responder(words, typed).declared_support(true);
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
        assert_eq!(parse_answer("k=decline"), Ok(("k".into(), AnswerOption::Action("decline".into()))));
        assert_eq!(
            parse_answer(r#"k={"a":"="}"#),
            Ok(("k".into(), AnswerOption::Object(r#"{"a":"="}"#.into())))
        );
        for wrong in ["k", "={}", "k=", "k=[1]", "k=yes", "k={"] {
            assert!(parse_answer(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            parse_root("/home/a b").unwrap_err().0,
            "`/home/a b` is not a file URI; did you mean `file:///home/a%20b`?"
        );
        assert!(
            parse_root("file:///a").is_ok()
                && parse_root("https://a/").is_err()
                && parse_root("file://a").is_err()
        );
        assert_eq!(file_uri(Path::new("/home/a b/ü")).as_deref(), Some("file:///home/a%20b/%C3%BC"));
        assert_eq!(file_uri(Path::new("a")), None);
        assert_eq!(parse_text_or_file("a@b").as_deref(), Ok("a@b"));
        assert!(parse_text_or_file("@no/such").unwrap_err().0.contains("cannot read `no/such`"));
    }
}
