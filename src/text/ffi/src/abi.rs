//! The rules of the boundary. Arguments are borrowed for the call; results are written to a caller's sink before
//! the call returns, so that nothing allocated here is freed there. Every entry point runs under `guard`.

use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

pub const OK: i32 = 0;
pub const INVALID: i32 = 1;
pub const INTERNAL: i32 = 2;
pub const UNAVAILABLE: i32 = 3;
pub const DEADLINE: i32 = 4;

/// Borrowed bytes; `data` may be null when `size` is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    pub fn as_slice<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        // SAFETY: the caller lends `size` bytes for the duration of the call (header contract).
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }

    /// The bytes as text, or an error that names `what` and the first bad byte.
    pub fn as_str<'a>(self, what: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.as_slice())
            .map_err(|e| format!("{what} is not valid UTF-8 at byte {}", e.valid_up_to()))
    }
}

/// A borrowed array; null is allowed when `size` is 0.
pub fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        return &[];
    }
    // SAFETY: the caller lends `size` elements for the duration of the call (header contract).
    unsafe { std::slice::from_raw_parts(data, size) }
}

/// Where the bytes of a result go.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sink {
    context: *mut c_void,
    write: extern "C" fn(*mut c_void, *const u8, usize),
}

impl Sink {
    pub fn put(&self, bytes: &[u8]) {
        (self.write)(self.context, bytes.as_ptr(), bytes.len());
    }
}

/// Where the ids of a result go.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IdSink {
    context: *mut c_void,
    write: extern "C" fn(*mut c_void, *const u32, usize),
}

impl IdSink {
    pub fn put(&self, ids: &[u32]) {
        (self.write)(self.context, ids.as_ptr(), ids.len());
    }
}

thread_local! {
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Rust's default hook prints to stderr, where only this program's own log lines belong; the place is kept for
/// the error text instead.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
            PANIC_PLACE.with(|p| *p.borrow_mut() = place);
        }));
    });
}

/// Runs `body`; a panic becomes an error text that starts with "internal: ".
pub fn catch<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    quiet_panics();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("unknown panic");
        let place = PANIC_PLACE.with(|p| p.take());
        Err(format!("{INTERNAL_PREFIX}{text}{place}"))
    })
}

/// Error texts that begin so have a code of their own; every other is `INVALID`.
const INTERNAL_PREFIX: &str = "internal: ";
pub const UNAVAILABLE_PREFIX: &str = "unavailable: ";
pub const DEADLINE_PREFIX: &str = "deadline: ";

/// `catch`, with the error written to `error` and turned into a code.
pub fn guard(error: Sink, body: impl FnOnce() -> Result<(), String>) -> i32 {
    let Err(text) = catch(body) else { return OK };
    let kinds = [(INTERNAL_PREFIX, INTERNAL), (UNAVAILABLE_PREFIX, UNAVAILABLE), (DEADLINE_PREFIX, DEADLINE)];
    let known = kinds.iter().find_map(|(prefix, code)| Some((*code, text.strip_prefix(prefix)?)));
    let (code, rest) = known.unwrap_or((INVALID, &text));
    error.put(rest.as_bytes());
    code
}
