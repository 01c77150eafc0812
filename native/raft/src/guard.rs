//! Panics of the core become values.
//!
//! raft-rs panics where its state contradicts itself. A panic that crossed into Python would end the
//! process or half a call; here it ends the call, and its text is the error. Nothing is printed: the text
//! travels. Panics of other threads and other libraries go to the hook that was there before.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Run `work`; a panic in it is the text of the panic and where it happened.
pub fn run<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    HOOK.call_once(install);
    INSIDE.with(|inside| inside.set(true));
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    INSIDE.with(|inside| inside.set(false));
    outcome.map_err(|_| LAST.with(|last| last.take()))
}

/// Put our hook in front of the one that is there.
fn install() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if INSIDE.with(Cell::get) {
            LAST.with(|last| last.replace(describe(info)));
        } else {
            before(info);
        }
    }));
}

/// The text of a panic and its place.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without words");
    match info.location() {
        Some(at) => format!("{text} ({}:{})", file_name(at.file()), at.line()),
        None => text.to_owned(),
    }
}

/// The last part of a path: where a crate lies on the building machine says nothing.
fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_without_a_panic_is_its_value() {
        assert_eq!(run(|| 7), Ok(7));
    }

    #[test]
    fn panic_is_its_text_and_its_place() {
        let text = run(|| panic!("to_commit {} is out of range", 9)).unwrap_err();
        assert!(text.starts_with("to_commit 9 is out of range (guard.rs:"), "{text}");
    }

    #[test]
    fn guard_after_a_panic_runs_again() {
        assert!(run(|| panic!("once")).is_err());
        assert_eq!(run(|| 1), Ok(1));
    }
}
