//! `Message`: what an actor is asked to do, and the ways to answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use roost_core::id::{MeshId, ProcId};
use roost_core::wire::{ChainBuffer, ChainLink, ReplyStatus};

use crate::cell::Cell;
use crate::endpoints::Endpoint;
use crate::page::StartedPage;
use crate::payload::{Payload, dump, is_plain};

/// Bits of a message frame's flags.
pub(crate) mod flags {
    /// The caller takes values one by one.
    pub(crate) const STREAM: u8 = 1;
}

/// Where a message came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This very process: no session counts it, and this mailbox is its only queue.
    Here,
    /// A frame of another proc's session.
    Session {
        /// The session's place in the page of started numbers; None where it has none.
        slot: Option<u32>,
        sequence: u64,
    },
}

/// One message in a mailbox.
pub(crate) struct Mail {
    pub(crate) sender: u64,
    pub(crate) incarnation: u32,
    pub(crate) origin: Origin,
    pub(crate) call: u64,
    pub(crate) rank: u32,
    pub(crate) flags: u8,
    /// When the caller gives up, in ns of the monotonic clock; 0 for never.
    pub(crate) deadline: i64,
    pub(crate) endpoint: Option<Arc<Endpoint>>,
    /// The endpoint's name where the table has none such.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) sizes: Option<Arc<[u8]>>,
    pub(crate) payload: Payload,
    /// Bytes of the payload, as the sender counts them against its credit.
    pub(crate) bytes: u64,
    pub(crate) page: Option<Arc<StartedPage>>,
    /// The endpoints that wait for this call, where there are any.
    pub(crate) chain: Option<Arc<ChainBuffer>>,
}

impl Mail {
    /// Note for the host that this message may have had an effect.
    pub(crate) fn mark_started(&self) {
        if let (
            Some(page),
            Origin::Session {
                slot: Some(slot),
                sequence,
            },
        ) = (&self.page, self.origin)
        {
            page.started(slot, sequence);
        }
    }

    /// Whether its caller has given up on it by now, by its deadline.
    pub(crate) fn is_late(&self) -> bool {
        self.call != 0 && self.deadline != 0 && crate::monotonic_ns() >= self.deadline
    }

    pub(crate) fn name_text(&self) -> String {
        let endpoint = self.endpoint.as_ref().map(|endpoint| &endpoint.name);
        self.name
            .as_ref()
            .or(endpoint)
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// The same message for another rank of a cast, whose parts are its own.
    pub(crate) fn for_rank(&self, py: Python<'_>, rank: u32) -> Self {
        Self {
            rank,
            endpoint: self.endpoint.clone(),
            name: self.name.clone(),
            sizes: self.sizes.clone(),
            payload: self.payload.apart(py),
            page: self.page.clone(),
            chain: self.chain.clone(),
            ..*self
        }
    }
}

/// Arguments and keywords.
type Opened<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);
/// What a caller has packed: a tuple, or with keywords a list of that and a dict. Of anything else no endpoint is called: it
/// would be that endpoint's error.
fn opened(value: Bound<'_, PyAny>) -> PyResult<Opened<'_>> {
    if value.is_exact_instance_of::<PyTuple>() {
        return Ok((value, None));
    }
    if let Ok(pair) = value.cast_exact::<PyList>()
        && pair.len() == 2
    {
        let (args, kwargs) = (pair.get_item(0)?, pair.get_item(1)?);
        let is_named = kwargs
            .cast_exact::<PyDict>()
            .is_ok_and(|named| named.iter().all(|(name, _)| name.is_instance_of::<PyString>()));
        if is_named && args.is_exact_instance_of::<PyTuple>() {
            return Ok((args, Some(kwargs)));
        }
    }
    Err(PyTypeError::new_err(format!(
        "its sender has packed a {} where arguments belong",
        value.get_type().name()?
    )))
}

/// A function, its arguments and its keywords.
pub(crate) type Quick<'py> = (Py<PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Numbers of messages that call others while they are handled.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// What the calls that an endpoint makes carry.
struct Below {
    /// The message's own number in this process.
    number: u64,
    /// The endpoints that wait for those calls.
    chain: Arc<ChainBuffer>,
}

/// A message that an actor handles now.
#[pyclass(frozen, module = "roost._roost")]
pub struct Message {
    pub(crate) mail: Mail,
    pub(crate) cell: Py<Cell>,
    /// When it left the mailbox, on `CLOCK_MONOTONIC`.
    pub(crate) started_ns: u64,
    answered: AtomicBool,
    cancelled: AtomicBool,
    /// The arguments were unpickled: an error from now on is the endpoint's own.
    loaded: AtomicBool,
    /// Stream items sent.
    items: AtomicU64,
    /// Made by the first call that its endpoint makes; None where the chain is as long as it may be.
    below: OnceLock<Option<Below>>,
}

impl Message {
    pub(crate) fn new(mail: Mail, cell: Py<Cell>) -> Self {
        Self {
            mail,
            cell,
            started_ns: crate::about_now_ns(),
            answered: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            items: AtomicU64::new(0),
            below: OnceLock::new(),
        }
    }

    /// The endpoints that wait for what this one calls: those that wait for it, and itself.
    pub(crate) fn chain_below(&self, own: u64) -> Option<Arc<ChainBuffer>> {
        let below = self.below.get_or_init(|| {
            let mut chain = self.mail.chain.as_deref().cloned().unwrap_or_default();
            let cell = self.cell.get();
            let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
            let link = ChainLink {
                proc: ProcId::new(own)?,
                mesh: MeshId::new(cell.mesh)?,
                slot: cell.slot,
                call: number,
            };
            chain.push(link).ok()?;
            let chain = Arc::new(chain);
            Some(Below { number, chain })
        });
        below.as_ref().map(|below| Arc::clone(&below.chain))
    }

    /// Whether it carries this number in the chains of what it calls.
    pub(crate) fn has_number(&self, number: u64) -> bool {
        matches!(self.below.get(), Some(Some(below)) if below.number == number)
    }

    pub(crate) fn set_cancelled(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// What a worker needs to run this message at once: an `async def` endpoint that runs alone. None for any other, which
    /// Python looks at itself.
    pub(crate) fn quick<'py>(&self, py: Python<'py>) -> PyResult<Option<Quick<'py>>> {
        let Some(quick) = self
            .mail
            .endpoint
            .as_ref()
            .and_then(|endpoint| endpoint.quick.as_ref())
        else {
            return Ok(None);
        };
        let (args, kwargs) = self.open(py)?;
        Ok(Some((quick.clone_ref(py), args, kwargs)))
    }

    /// The first answer counts.
    fn answer(&self, py: Python<'_>, status: ReplyStatus, payload: &Payload) -> PyResult<()> {
        if self.answered.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let cell = self.cell.get();
        drop(cell.finished(self));
        if self.mail.call == 0 {
            return Ok(());
        }
        cell.node.get().answer(py, &self.mail, status, payload)
    }
}

#[pymethods]
impl Message {
    /// The arguments: (args, kwargs or None). Raises what unpickling raised.
    fn open<'py>(&self, py: Python<'py>) -> PyResult<Opened<'py>> {
        let cell = self.cell.get();
        let value = self.mail.payload.load(py, cell.node.get().hooks()?)?;
        let opened = opened(value)?;
        self.loaded.store(true, Ordering::Relaxed);
        Ok(opened)
    }

    /// Answer with a value. A value that cannot be sent raises, and the message is still to be answered.
    fn reply(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.mail.call == 0 || self.is_answered() {
            self.answered.store(true, Ordering::Relaxed);
            drop(self.cell.get().finished(self));
            return Ok(());
        }
        let node = self.cell.get().node.get();
        if self.mail.origin == Origin::Here && is_plain(value) {
            return self.answer(py, ReplyStatus::Value, &Payload::ready(value));
        }
        let payload = dump(py, node.hooks()?, value, self.mail.sender)?;
        node.check_size(py, &payload, std::iter::once(self.mail.sender))?;
        self.answer(py, ReplyStatus::Value, &payload)
    }

    /// Answer with an error: bytes of `roost.serialize.dump_exception`.
    fn reply_error(&self, py: Python<'_>, error: Py<PyBytes>) -> PyResult<()> {
        self.answer(py, ReplyStatus::Error, &Payload::plain(error))
    }

    /// Give one value of a stream. The number of items sent so far, this one included; None when its reader's process has ended.
    fn item(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        if self.is_answered() {
            return Err(PyRuntimeError::new_err("the stream has ended"));
        }
        let node = self.cell.get().node.get();
        if !node.reaches(&self.mail) {
            return Ok(None);
        }
        let payload = dump(py, node.hooks()?, value, self.mail.sender)?;
        node.check_size(py, &payload, std::iter::once(self.mail.sender))?;
        node.answer(py, &self.mail, ReplyStatus::Item, &payload)?;
        Ok(Some(self.items.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// End a stream.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let empty = Payload::plain(PyBytes::new(py, b"").unbind());
        self.answer(py, ReplyStatus::End, &empty)
    }

    /// Send the message back: its actor ended while it ran. `reason` is what its cell answers later messages with.
    fn give_back(&self, py: Python<'_>, reason: Py<PyBytes>) -> PyResult<()> {
        self.answer(py, ReplyStatus::Dropped, &Payload::plain(reason))
    }

    /// Give no answer: the caller cancelled.
    fn drop(&self) {
        if !self.answered.swap(true, Ordering::Relaxed) {
            drop(self.cell.get().finished(self));
        }
    }

    /// The endpoint called, or None when the class has none of that name.
    #[getter]
    fn endpoint(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.mail
            .endpoint
            .as_ref()
            .map(|endpoint| endpoint.info.clone_ref(py))
    }

    #[getter]
    fn name(&self) -> String {
        self.mail.name_text()
    }

    #[getter]
    fn has_caller(&self) -> bool {
        self.mail.call != 0
    }

    #[getter]
    fn wants_stream(&self) -> bool {
        self.mail.flags & flags::STREAM != 0
    }

    #[getter]
    fn answered(&self) -> bool {
        self.is_answered()
    }

    /// Whether the arguments were unpickled.
    #[getter]
    fn loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    #[getter]
    fn sender(&self) -> u64 {
        self.mail.sender
    }

    #[getter]
    fn call(&self) -> u64 {
        self.mail.call
    }

    /// The rank inside the slice that the message was sent to.
    #[getter]
    fn rank(&self) -> u32 {
        self.mail.rank
    }

    /// The sizes of that slice, as the sender encoded them.
    #[getter]
    fn sizes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.mail.sizes.as_deref().unwrap_or_default())
    }

    /// Whether its caller has given up on it by now, by its deadline.
    #[getter]
    fn late(&self) -> bool {
        self.mail.is_late()
    }

    /// The actor's runner.
    #[getter]
    fn runner(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.cell.get().runner(py)
    }
}
