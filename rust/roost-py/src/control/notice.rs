//! Notices as Python gets them: tuples of plain values.

use std::os::fd::{IntoRawFd, OwnedFd};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use roost_core::control::{Death, DeathKind, Exit, HostStatus, Member, Status, Times, ToClient};

use roost_core::id::HostId;

use super::clock::{now_ns, wall_ns};
use super::shared::{FarEnd, StationNews, What};
use crate::node::plain;
use crate::peer::{FarLane, Letter, Letters};

/// One notice as a tuple. `descriptor` becomes Python's, which has to close it.
pub(super) fn tuple(py: Python<'_>, what: What, descriptor: Option<OwnedFd>) -> PyResult<Bound<'_, PyTuple>> {
    match what {
        What::Message(notice) => message(py, notice, descriptor),
        What::Lane(end) => lane(py, *end, descriptor),
        What::Host(news) => {
            let details = PyDict::new(py);
            for (name, text) in &news.details {
                details.set_item(name, text)?;
            }
            details.set_item("host", news.host.map(HostId::get))?;
            ("host", news.number, news.status, details).into_pyobject(py)
        }
        What::Station(StationNews::Listening { address }) => ("listening", address).into_pyobject(py),
        What::Station(StationNews::Client { job, from }) => {
            ("client", job.to_string(), from).into_pyobject(py)
        }
        What::Station(StationNews::ClientEnded { job, reason }) => {
            ("client_ended", job.to_string(), reason).into_pyobject(py)
        }
        What::Station(StationNews::Done) => ("done",).into_pyobject(py),
        What::Letters(all) => letters(py, all),
        What::Clock { offset_ns } => ("clock", offset_ns).into_pyobject(py),
    }
}

/// Frames that have come along the tree of hosts.
fn letters(py: Python<'_>, letters: Vec<Letter>) -> PyResult<Bound<'_, PyTuple>> {
    ("letters", Bound::new(py, Letters::new(letters))?).into_pyobject(py)
}

/// A data lane to another host.
fn lane(py: Python<'_>, end: FarEnd, descriptor: Option<OwnedFd>) -> PyResult<Bound<'_, PyTuple>> {
    let FarEnd {
        proc,
        incarnation,
        slot,
        secure,
        session,
        connection,
        dials,
    } = end;
    let Some(socket) = descriptor else {
        let reason = "no file descriptors left for a data lane (EMFILE)";
        return ("connect_failed", proc.get(), reason).into_pyobject(py);
    };
    let lane = FarLane::new(socket, secure, session, connection, dials);
    (
        "far_connected",
        proc.get(),
        incarnation.0,
        Bound::new(py, lane)?,
        slot,
    )
        .into_pyobject(py)
}

fn message(py: Python<'_>, notice: ToClient, descriptor: Option<OwnedFd>) -> PyResult<Bound<'_, PyTuple>> {
    match notice {
        ToClient::Epoch { epoch, host } => ("epoch", epoch, host.get()).into_pyobject(py),
        ToClient::Connected {
            proc,
            incarnation,
            slot,
        } => ("connected", proc.get(), incarnation.0, number(descriptor), slot).into_pyobject(py),
        ToClient::ConnectFailed { proc, reason } => ("connect_failed", proc.get(), reason).into_pyobject(py),
        ToClient::Member(member) => self::member(py, &member),
        ToClient::Segment {
            from,
            segment,
            size_bytes,
        } => ("segment", from.get(), segment, size_bytes, number(descriptor)).into_pyobject(py),
        ToClient::SegmentAck { from, segment, ok } => {
            ("segment_ack", from.get(), segment, ok).into_pyobject(py)
        }
        // The control thread answers it; a driver is not asked.
        ToClient::Look { from, mesh } => ("look", from.get(), mesh.get()).into_pyobject(py),
        ToClient::Seen {
            from,
            mesh,
            activities,
        } => ("seen", from.get(), mesh.get(), plain(activities)).into_pyobject(py),
        ToClient::Stop { reason, deadline_ns } => ("stop", reason, seconds(deadline_ns)).into_pyobject(py),
        ToClient::Warning { text } => ("warning", text).into_pyobject(py),
        ToClient::Prepare { start } => ("prepare", PyBytes::new(py, &start)).into_pyobject(py),
        ToClient::Become {
            incarnation,
            spec,
            recorded,
        } => {
            let recorded: Vec<_> = recorded.iter().map(|one| PyBytes::new(py, one)).collect();
            ("become", incarnation.0, PyBytes::new(py, &spec), recorded).into_pyobject(py)
        }
        ToClient::Ask { proc, incarnation } => ("ask", proc.get(), incarnation.0).into_pyobject(py),
        ToClient::Host { host, name, status } => {
            let (status, reason) = match status {
                HostStatus::Joined => ("joined", String::new()),
                HostStatus::Lost { reason } => ("lost", reason),
                HostStatus::Left => ("left", String::new()),
            };
            ("host_changed", host.get(), name, status, reason).into_pyobject(py)
        }
        ToClient::Clock { offset_ns } => ("clock", offset_ns).into_pyobject(py),
        // The control thread does what these say; Python has no part in it.
        ToClient::Network(_) => ("network",).into_pyobject(py),
        ToClient::Dial { proc, .. } => ("dial", proc.get()).into_pyobject(py),
        ToClient::Expect { proc, .. } => ("expect", proc.get()).into_pyobject(py),
        ToClient::Redial { proc } => ("redial", proc.get()).into_pyobject(py),
        ToClient::Linked { proc, .. }
        | ToClient::LinkFailed { proc, .. }
        | ToClient::DialLink { proc, .. }
        | ToClient::ExpectLink { proc, .. } => ("link", proc.get()).into_pyobject(py),
        ToClient::Carried {
            from,
            session,
            carrier,
            frames,
        } => {
            let letter = Letter {
                proc: from,
                session,
                carrier: Some(carrier),
                frames,
            };
            letters(py, vec![letter])
        }
        ToClient::Incoming { .. } => ("incoming", number(descriptor)).into_pyobject(py),
    }
}

/// The raw number, which Python owns from now on; -1 for none.
fn number(descriptor: Option<OwnedFd>) -> i32 {
    descriptor.map_or(-1, IntoRawFd::into_raw_fd)
}

fn member<'py>(py: Python<'py>, member: &Member) -> PyResult<Bound<'py, PyTuple>> {
    let details = PyDict::new(py);
    let name = match &member.status {
        Status::Starting { times, actors, host } => {
            self::times(&details, times)?;
            let actors: Vec<u64> = actors.iter().map(|mesh| mesh.get()).collect();
            details.set_item("actors", actors)?;
            details.set_item("host", host.get())?;
            "starting"
        }
        Status::Up { pid, times } => {
            self::times(&details, times)?;
            details.set_item("pid", pid)?;
            "up"
        }
        Status::Stalled { reason, stack } => {
            details.set_item("reason", reason)?;
            details.set_item("stack", stack)?;
            "stalled"
        }
        Status::Resumed => "resumed",
        Status::Dead { death } => {
            self::death(&details, death)?;
            "dead"
        }
        Status::Restarting { delay_ns, reason } => {
            details.set_item("delay_s", seconds(*delay_ns))?;
            details.set_item("reason", reason)?;
            "restarting"
        }
        Status::Failed { death, earlier } => {
            self::death(&details, death)?;
            let reasons = PyList::empty(py);
            for death in earlier {
                let reason = PyDict::new(py);
                self::death(&reason, death)?;
                reasons.append(reason)?;
            }
            details.set_item("reasons", reasons)?;
            "failed"
        }
        Status::Stopped { death } => {
            self::death(&details, death)?;
            "stopped"
        }
        Status::Gone => "gone",
    };
    (
        "member",
        member.epoch,
        member.proc.get(),
        member.incarnation.0,
        name,
        details,
    )
        .into_pyobject(py)
}

fn death(details: &Bound<'_, PyDict>, death: &Death) -> PyResult<()> {
    let (exit_code, signal) = match death.exit {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    details.set_item("kind", kind_name(death.kind))?;
    details.set_item("exit_code", exit_code)?;
    details.set_item("signal", signal)?;
    details.set_item("reason", &death.reason)?;
    details.set_item("stderr", &death.stderr)?;
    details.set_item("pid", death.pid)?;
    // Without a page everything may have been started.
    details.set_item("started", death.started)?;
    details.set_item("said", death.said)?;
    details.set_item("forced", death.forced)?;
    times(details, &death.times)
}

/// Times for people, in seconds since 1970: this is the edge where monotonic time becomes wall time.
fn times(details: &Bound<'_, PyDict>, times: &Times) -> PyResult<()> {
    let (wall, now) = (wall_ns(), now_ns());
    let dict = PyDict::new(details.py());
    let all = [
        ("started_at", times.started_ns),
        ("up_at", times.up_ns),
        ("died_at", times.died_ns),
        ("detected_at", times.detected_ns),
    ];
    for (name, time) in all {
        if let Some(time) = time {
            dict.set_item(name, seconds(wall.saturating_sub(now.saturating_sub(time))))?;
        }
    }
    details.set_item("times", dict)
}

#[expect(clippy::cast_precision_loss, reason = "Python's times are floats")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn kind_name(kind: DeathKind) -> &'static str {
    match kind {
        DeathKind::Exit => "exit",
        DeathKind::Signal => "signal",
        DeathKind::Oom => "oom",
        DeathKind::Start => "start",
        DeathKind::Stopped => "stopped",
        DeathKind::Lost => "lost",
    }
}
