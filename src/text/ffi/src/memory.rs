//! A budget of memory for one thread. An allocation that fails ends the process, and an allocator must not unwind:
//! so a thread that would exceed its budget stops where it stands, for ever, and whoever waits for it is told.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, Thread};

/// The process's allocator: the system's, which counts for threads that have a budget.
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Threads that stand still because their budget was used up. They keep what they hold.
static STOPPED: AtomicUsize = AtomicUsize::new(0);

pub fn num_stopped_threads() -> usize {
    STOPPED.load(Ordering::Relaxed)
}

thread_local! {
    // No destructor and no lazy start: it can be read inside the allocator, at any time of a thread's life.
    static BUDGET: Cell<*const Budget> = const { Cell::new(ptr::null()) };
}

pub struct Budget {
    left: AtomicIsize,
    used_up: AtomicBool,
    waiter: Thread,
}

impl Budget {
    /// The calling thread is unparked when the budget is used up.
    pub fn new(bytes: usize) -> Arc<Self> {
        let left = AtomicIsize::new(isize::try_from(bytes).unwrap_or(isize::MAX));
        Arc::new(Budget { left, used_up: AtomicBool::new(false), waiter: thread::current() })
    }

    pub fn is_used_up(&self) -> bool {
        self.used_up.load(Ordering::Acquire)
    }

    /// Runs `body` on this thread, with what it allocates counted here. Does not return when it is used up.
    pub fn limit<T>(self: &Arc<Self>, body: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                BUDGET.set(ptr::null());
            }
        }
        BUDGET.set(Arc::as_ptr(self));
        let _reset = Reset;
        body()
    }

    fn take(&self, bytes: usize) {
        let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
        // One thread counts: nothing is lost between the two.
        let left = self.left.load(Ordering::Relaxed).saturating_sub(bytes);
        self.left.store(left, Ordering::Relaxed);
        if left < 0 {
            STOPPED.fetch_add(1, Ordering::Relaxed);
            self.used_up.store(true, Ordering::Release);
            self.waiter.unpark();
            loop {
                thread::park();
            }
        }
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes as isize, Ordering::Relaxed);
    }
}

fn with_budget(count: impl FnOnce(&Budget)) {
    let budget = BUDGET.get();
    if !budget.is_null() {
        // SAFETY: `limit` holds the Arc while the pointer is set.
        count(unsafe { &*budget });
    }
}

// SAFETY: every call goes on to the system's allocator as it came; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        with_budget(|budget| budget.take(layout.size()));
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        with_budget(|budget| budget.take(layout.size()));
        System.alloc_zeroed(layout)
    }
    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        with_budget(|budget| {
            budget.take(size.saturating_sub(layout.size()));
            budget.give_back(layout.size().saturating_sub(size));
        });
        System.realloc(data, layout, size)
    }
    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        with_budget(|budget| budget.give_back(layout.size()));
        System.dealloc(data, layout)
    }
}
