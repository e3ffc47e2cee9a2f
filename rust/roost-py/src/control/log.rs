//! The output of procs, on its way to the driver's stdout and stderr.
//!
//! The control thread only queues whole lines; a thread of its own writes them, so that a terminal that stands still
//! delays no death. What passes the bound of one proc is dropped and counted.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Lines of one proc that wait for the driver's output to take them.
const QUEUED_BYTES_MAX: usize = 1 << 20;

/// Written at once; more would let one stream's burst hold the other back.
const WRITE_BYTES_MAX: usize = 64 << 10;

const STACK_BYTES: usize = 128 << 10;

/// Where lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stream {
    Out,
    Err,
}

#[derive(Debug)]
struct Lines {
    stream: Stream,
    label: Arc<str>,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Lines>,
    /// By label, with what is being written.
    queued_bytes: HashMap<Arc<str>, usize>,
    dropped_lines: HashMap<Arc<str>, u64>,
    is_writing: bool,
    is_closed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    state: Mutex<State>,
    changed: Condvar,
}

impl Log {
    /// Start its thread, which uses the file table of the calling thread: the user may have redirected 1 and 2.
    pub(super) fn start() -> std::io::Result<Arc<Self>> {
        let log = Arc::new(Self::default());
        let writer = log.clone();
        let run = move || {
            super::table::block_signals();
            writer.write_all();
        };
        thread::Builder::new()
            .name("roost-log".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(run)?;
        Ok(log)
    }

    /// One that nobody writes here: who takes the lines sends them to the driver's host.
    pub(super) fn collect() -> Arc<Self> {
        Arc::default()
    }

    /// The oldest lines: (whether to stderr, who printed them, they, how many).
    pub(super) fn take(&self) -> Option<(bool, String, Vec<u8>, u64)> {
        let mut state = self.lock();
        let lines = state.queue.pop_front()?;
        state.written(&lines, true);
        let Lines { stream, label, bytes } = lines;
        let count = bytes.split(|&byte| byte == b'\n').count().saturating_sub(1) as u64;
        Some((stream == Stream::Err, label.to_string(), bytes, count))
    }

    /// Queue whole lines, the prefix included. `count` is how many.
    pub(super) fn push(&self, stream: Stream, label: &Arc<str>, bytes: Vec<u8>, count: u64) {
        let mut state = self.lock();
        let queued = state.queued_bytes.get(label).copied().unwrap_or(0);
        if queued + bytes.len() > QUEUED_BYTES_MAX || state.is_closed {
            *state.dropped_lines.entry(label.clone()).or_default() += count;
            return;
        }
        state.queued_bytes.insert(label.clone(), queued + bytes.len());
        state.queue.push_back(Lines {
            stream,
            label: label.clone(),
            bytes,
        });
        self.changed.notify_all();
    }

    /// Wait until everything is written, or the time is over.
    pub(super) fn flush(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.queue.is_empty() || state.is_writing {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return;
            };
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn write_all(&self) {
        let mut state = self.lock();
        loop {
            let Some((stream, batch)) = take_batch(&mut state) else {
                if state.is_closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.is_writing = true;
            drop(state);
            let bytes: Vec<u8> = batch
                .iter()
                .flat_map(|lines| lines.bytes.iter().copied())
                .collect();
            let written = write(stream, &bytes);
            state = self.lock();
            state.is_writing = false;
            for lines in batch {
                state.written(&lines, written);
            }
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Account for lines that were written, or could not be.
    fn written(&mut self, lines: &Lines, written: bool) {
        let left = self
            .queued_bytes
            .get(&lines.label)
            .map_or(0, |queued| queued - lines.bytes.len());
        if left > 0 {
            self.queued_bytes.insert(lines.label.clone(), left);
            return;
        }
        self.queued_bytes.remove(&lines.label);
        // There is room again: say what is missing, where the output works at all.
        if written && let Some(count) = self.dropped_lines.remove(&lines.label) {
            let text = format!(
                "[{}] ({count} lines dropped: the driver's output was too slow)\n",
                lines.label
            );
            self.queued_bytes.insert(lines.label.clone(), text.len());
            self.queue.push_back(Lines {
                stream: lines.stream,
                label: lines.label.clone(),
                bytes: text.into_bytes(),
            });
        }
    }
}

fn take_batch(state: &mut State) -> Option<(Stream, Vec<Lines>)> {
    let first = state.queue.pop_front()?;
    let (stream, mut length) = (first.stream, first.bytes.len());
    let mut batch = vec![first];
    while let Some(next) = state.queue.front() {
        length += next.bytes.len();
        if next.stream != stream || length > WRITE_BYTES_MAX {
            break;
        }
        batch.extend(state.queue.pop_front());
    }
    Some((stream, batch))
}

/// Write to the driver's own output. Gives false when that takes nothing any more (closed, disk full).
fn write(stream: Stream, mut bytes: &[u8]) -> bool {
    let output: BorrowedFd<'_> = match stream {
        Stream::Out => rustix::stdio::stdout(),
        Stream::Err => rustix::stdio::stderr(),
    };
    while !bytes.is_empty() {
        match rustix::io::write(output, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut set = [PollFd::new(&output, PollFlags::OUT)];
                let _ = poll(
                    &mut set,
                    Some(&Timespec {
                        tv_sec: 1,
                        tv_nsec: 0,
                    }),
                );
            }
            Err(_) => return false,
        }
    }
    true
}
