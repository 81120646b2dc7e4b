//! Chat templates. A template comes with a model file and is not trusted: it runs on a thread of its own with a
//! budget of instructions, of output, of memory, of stack and of time.

use std::ffi::CString;
use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{channel, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, Output, State};
use serde_json::{Map, Value as Json};

use crate::abi::{catch, guard, Bytes, Sink, DEADLINE_PREFIX, UNAVAILABLE_PREFIX};
use crate::json::tojson;
use crate::memory::{num_stopped_threads, Budget};

const NAME: &str = "chat";
/// A long conversation costs some hundred instructions a message.
const MAX_INSTRUCTIONS: u64 = 2_000_000;
const MAX_OUTPUT_BYTES: usize = 64 << 20;
/// Several times what the longest conversation of a request needs.
const MAX_MEMORY_BYTES: usize = 256 << 20;
/// Of a request. A value of JSON costs up to 250 bytes here (an object of one object): these, 50 MiB. Were they not
/// bounded, requests could use up the memory whatever the template, and with it the renders below.
const MAX_JSON_VALUES: usize = 200_000;
/// A render that used up its memory keeps it.
const MAX_STOPPED_RENDERS: usize = 4;
/// A render that outlasts its time takes a core until its instructions are used up, each of which may copy megabytes.
const MAX_LATE_RENDERS: usize = 2;
/// Values that a template nests as deep as its instructions allow (400,000 levels) are dropped, printed and compared
/// recursively, at up to 420 bytes a level. Only the pages touched become memory.
const STACK_BYTES: usize = 512 << 20;
/// The names that a render sets itself.
const RESERVED: &[&str] = &["messages", "tools", "documents", "add_generation_prompt", "strftime_now"];

pub struct Handle {
    environment: Arc<Environment<'static>>,
    bos_token: String,
    eos_token: String,
}

/// Marks the error that `raise_exception` makes: its text is the template's own.
#[derive(Debug)]
struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raised by the chat template")
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
}

/// The local time `now` (seconds since 1970) in C's strftime format.
fn strftime(format: &str, now: i64) -> Result<String, Error> {
    let bad = || Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format '{format}'"));
    let pattern = CString::new(format).map_err(|_| bad())?;
    let mut buffer = [0u8; 512];
    // SAFETY: localtime_r fills the zeroed tm or returns null; strftime writes at most the buffer's size.
    let written = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut local).is_null() {
            return Err(bad());
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), pattern.as_ptr(), &local)
    };
    if written == 0 && !format.is_empty() {
        return Err(bad());
    }
    Ok(String::from_utf8_lossy(&buffer[..written]).into_owned())
}

/// Python's spelling of the constants; everything else as minijinja prints it.
fn print_like_python(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        _ => escape_formatter(out, state, value),
    }
}

/// `{% generation %}` only marks the assistant's text for training; here it is a block that changes nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let body = &tag[..end];
        match body.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            "generation" => out.push_str(&body.replace("generation", "if true")),
            "endgeneration" => out.push_str(&body.replace("endgeneration", "endif")),
            _ => out.push_str(body),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

impl Handle {
    fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MAX_INSTRUCTIONS));
        environment.set_recursion_limit(200);
        environment.set_formatter(print_like_python);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        // For people, not for prompts, and quadratic in the depth of what they print.
        environment.remove_filter("pprint");
        environment.remove_global("debug");
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", |value: &Value, indent: Option<Value>, options: Kwargs| {
            tojson(value, indent, options)
        });
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| {
            format!("the chat template does not parse: {}. Give another with --chat-template", describe(&e))
        })?;
        let environment = Arc::new(environment);
        Ok(Handle { environment, bos_token: bos_token.to_string(), eos_token: eos_token.to_string() })
    }

    fn context(&self, request: &Request) -> Result<Map<String, Json>, String> {
        let mut context = request.kwargs.clone();
        if let Some(name) = RESERVED.iter().find(|name| context.contains_key(**name)) {
            return Err(format!("chat_template_kwargs cannot set '{name}': it has a field of its own"));
        }
        context.entry("bos_token").or_insert_with(|| self.bos_token.clone().into());
        context.entry("eos_token").or_insert_with(|| self.eos_token.clone().into());
        context.insert("messages".into(), request.messages.clone().into());
        context.insert("tools".into(), request.tools.clone());
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        Ok(context)
    }

    /// Renders on a thread of its own. A template that outlasts its time is left behind there: its instructions are
    /// bounded, so that the thread ends by itself, and while more than a few of them run nothing else is rendered. One
    /// that uses up its memory stays.
    fn render(&self, request: &Request) -> Result<String, String> {
        if !can_render() {
            return Err(format!(
                "{UNAVAILABLE_PREFIX}{MAX_STOPPED_RENDERS} conversations have {USED_UP}; nothing is rendered any more"
            ));
        }
        if num_late_renders() > MAX_LATE_RENDERS {
            return Err(format!(
                "{UNAVAILABLE_PREFIX}more than {MAX_LATE_RENDERS} conversations that took the chat template too long \
                 are still being rendered"
            ));
        }
        let context = self.context(request)?;
        let environment = Arc::clone(&self.environment);
        let now = request.now;
        let budget = Budget::new(MAX_MEMORY_BYTES);
        let own_budget = Arc::clone(&budget);
        let waiter = thread::current();
        let (result_in, result_out) = channel();
        let renders = thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let result = own_budget.limit(|| catch(|| render_here(&environment, context, now)));
                // The other side may have given up; then nobody wants the result.
                let _ = result_in.send(result);
                waiter.unpark();
            })
            .map_err(|e| format!("internal: no thread for the chat template: {e}"))?;
        let deadline = Instant::now() + request.timeout;
        loop {
            match result_out.try_recv() {
                Ok(result) => {
                    // It has nothing left to do: with its text the thread is gone, too.
                    let _ = renders.join();
                    return result;
                }
                Err(TryRecvError::Disconnected) => {
                    return Err("internal: the chat template's thread ended early".into())
                }
                Err(TryRecvError::Empty) => {}
            }
            if budget.is_used_up() {
                return Err(format!("a conversation has {USED_UP}; shorten it, or give another with --chat-template"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                late_renders().push(Arc::downgrade(&budget));
                return Err(format!(
                    "{DEADLINE_PREFIX}the chat template took longer than {} ms; shorten the conversation or give \
                     another template with --chat-template",
                    request.timeout.as_millis()
                ));
            }
            thread::park_timeout(left);
        }
    }
}

fn can_render() -> bool {
    num_stopped_threads() < MAX_STOPPED_RENDERS
}

/// The budgets of renders that outlasted their time: each thread drops its own when it ends.
fn late_renders() -> MutexGuard<'static, Vec<Weak<Budget>>> {
    static LATE: Mutex<Vec<Weak<Budget>>> = Mutex::new(Vec::new());
    LATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those that still run.
fn num_late_renders() -> usize {
    let mut late = late_renders();
    late.retain(|budget| budget.upgrade().is_some_and(|budget| !budget.is_used_up()));
    late.len()
}

const USED_UP: &str = "used up the 256 MiB of memory that a chat template may hold";

/// A buffer that refuses to outgrow `MAX_OUTPUT_BYTES`.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!("more than {MAX_OUTPUT_BYTES} bytes of output")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn render_here(environment: &Environment, context: Map<String, Json>, now: i64) -> Result<String, String> {
    let clock = Value::from_function(move |format: String| strftime(&format, now));
    let entries = context.into_iter().map(|(name, json)| (name, Value::from_serialize(json)));
    let context: Value = entries.chain([("strftime_now".to_string(), clock)]).collect();
    let template = environment.get_template(NAME).map_err(|e| describe(&e))?;
    let mut out = Bounded(Vec::new());
    template.render_captured_to(context, &mut out).map_err(|e| describe(&e))?;
    String::from_utf8(out.0).map_err(|_| "the chat template made invalid UTF-8".to_string())
}

/// What the template itself said, or what failed and where.
fn describe(error: &Error) -> String {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = at {
        if let Some(inner) = e.downcast_ref::<Error>() {
            let raised = std::error::Error::source(inner).is_some_and(|s| s.is::<Raised>());
            if raised {
                return format!("the chat template refused: {}", inner.detail().unwrap_or_default());
            }
        }
        at = e.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return format!(
            "the chat template needs more than {MAX_INSTRUCTIONS} steps: it loops, or the conversation is too long"
        );
    }
    let cause = std::error::Error::source(error).map(|s| format!(": {s}")).unwrap_or_default();
    format!("chat template: {error}{cause}")
}

struct Request {
    messages: Vec<Json>,
    tools: Json,
    kwargs: Map<String, Json>,
    add_generation_prompt: bool,
    /// Where the model is to go on with the last message.
    continued: Option<Continued>,
    now: i64,
    timeout: Duration,
}

/// The last message's text, which has a mark behind it while the template renders: the text alone may stand elsewhere
/// too, in what a template puts behind a message, for example.
struct Continued {
    text: String,
    /// Ends in a space, by whose absence a template that trims shows.
    mark: String,
}

/// The text of a message: its content, or the last text part of it.
fn text_of(message: &mut Json) -> Option<&mut String> {
    match message.get_mut("content")? {
        Json::String(text) => Some(text),
        Json::Array(parts) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text")? {
            Json::String(text) => Some(text),
            _ => None,
        }),
        _ => None,
    }
}

impl Continued {
    fn mark(messages: &mut [Json]) -> Result<Self, String> {
        let all = Json::from(&messages[..]).to_string();
        let unused = (0..).map(|n| format!("CONTINUED-HERE-{n} ")).find(|mark| !all.contains(mark.trim_end()));
        let mark = unused.expect("messages are finite");
        let text = messages.last_mut().and_then(text_of);
        let text = text.ok_or("continue_final_message: the last message has no text content")?;
        let continued = Continued { text: text.clone(), mark };
        text.push_str(&continued.mark);
        Ok(continued)
    }

    /// Cuts a rendered prompt right behind the text, so that the model goes on with it.
    fn cut(&self, mut prompt: String) -> Result<String, String> {
        let at = prompt.rfind(self.mark.trim_end()).ok_or(
            "continue_final_message: the chat template changes the last message's text; send it without this option",
        )?;
        let trims = !prompt[at..].starts_with(&self.mark);
        prompt.truncate(at);
        // A template that trims the message also trims what is continued; of blanks alone it has left nothing.
        let blanks = &self.text[self.text.trim_end().len()..];
        if trims && blanks.len() < self.text.len() && prompt.ends_with(blanks) {
            prompt.truncate(at - blanks.len());
        }
        Ok(prompt)
    }
}

fn parse(json: Bytes, what: &str) -> Result<Json, String> {
    if json.as_slice().is_empty() {
        return Ok(Json::Null);
    }
    serde_json::from_slice(json.as_slice()).map_err(|e| format!("{what} is not valid JSON: {e}"))
}

/// `json` and all that it holds. serde_json bounds the depth.
fn num_values(json: &Json) -> usize {
    1 + match json {
        Json::Array(items) => items.iter().map(num_values).sum(),
        Json::Object(entries) => entries.values().map(num_values).sum(),
        _ => 0,
    }
}

fn check_size(messages: &[Json], tools: &Json, kwargs: &Map<String, Json>) -> Result<(), String> {
    let in_messages: usize = messages.iter().map(num_values).sum();
    let in_tools: usize = tools.as_array().into_iter().flatten().map(num_values).sum();
    let in_kwargs: usize = kwargs.values().map(num_values).sum();
    if in_messages + in_tools + in_kwargs <= MAX_JSON_VALUES {
        return Ok(());
    }
    Err(format!(
        "too many JSON values: {in_messages} in messages, {in_tools} in tools, {in_kwargs} in chat_template_kwargs; \
         a request may have {MAX_JSON_VALUES} together"
    ))
}

impl Request {
    fn new(options: &RenderOptions, messages: Bytes) -> Result<Self, String> {
        let Json::Array(mut messages) = parse(messages, "messages")? else {
            return Err("messages must be a JSON array of {\"role\", \"content\"} objects".into());
        };
        let kwargs = match parse(options.kwargs, "chat_template_kwargs")? {
            Json::Null => Map::new(),
            Json::Object(map) => map,
            _ => return Err("chat_template_kwargs must be a JSON object".into()),
        };
        let tools = parse(options.tools, "tools")?;
        if !(tools.is_null() || tools.is_array()) {
            return Err("tools must be a JSON array".into());
        }
        check_size(&messages, &tools, &kwargs)?;
        if options.add_generation_prompt && options.continue_final_message {
            return Err("add_generation_prompt and continue_final_message exclude each other: set one of them".into());
        }
        let continued = options.continue_final_message.then(|| Continued::mark(&mut messages)).transpose()?;
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        Ok(Request {
            messages,
            tools,
            kwargs,
            add_generation_prompt: options.add_generation_prompt,
            continued,
            now: if options.now_unix_s >= 0 { options.now_unix_s } else { clock() },
            timeout: Duration::from_millis(options.timeout_ms),
        })
    }
}

#[repr(C)]
pub struct RenderOptions {
    add_generation_prompt: bool,
    continue_final_message: bool,
    /// JSON array, or empty.
    tools: Bytes,
    /// JSON object, or empty.
    kwargs: Bytes,
    /// The time that strftime_now prints; negative: now.
    now_unix_s: i64,
    timeout_ms: u64,
}

#[no_mangle]
pub extern "C" fn llm_dist_chat_template_new(
    jinja: Bytes,
    bos_token: Bytes,
    eos_token: Bytes,
    out: *mut *mut Handle,
    error: Sink,
) -> i32 {
    guard(error, || {
        let source = jinja.as_str("the chat template")?;
        let handle = Handle::new(source, bos_token.as_str("the BOS token")?, eos_token.as_str("the EOS token")?)?;
        // SAFETY: `out` is a valid place for one pointer (header contract).
        unsafe { *out = Box::into_raw(Box::new(handle)) };
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn llm_dist_chat_template_free(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: made by `llm_dist_chat_template_new` and freed once (header contract).
        drop(unsafe { Box::from_raw(handle) });
    }
}

#[no_mangle]
pub extern "C" fn llm_dist_chat_template_can_render() -> bool {
    can_render()
}

#[no_mangle]
pub extern "C" fn llm_dist_chat_template_render(
    handle: *const Handle,
    messages: Bytes,
    options: *const RenderOptions,
    text: Sink,
    error: Sink,
) -> i32 {
    guard(error, || {
        // SAFETY: both are valid for the duration of the call (header contract).
        let (handle, options) = unsafe { (&*handle, &*options) };
        let request = Request::new(options, messages)?;
        let prompt = handle.render(&request)?;
        let prompt = match &request.continued {
            Some(continued) => continued.cut(prompt)?,
            None => prompt,
        };
        text.put(prompt.as_bytes());
        Ok(())
    })
}
