//! What happens to the future of every call, without a Python frame, a bound method or a tuple of arguments.
//!
//! [`quicken`] puts a native front before `Reply.result` and `Reply.exception`: a reply that is there is asked for its value
//! once or twice by whoever awaits or gathers it. Everything else stays with the methods written in Python.

use std::ffi::CStr;
use std::ptr;

use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// Methods of `asyncio.Future`, unbound, and the error of one that is not done, or done already.
struct Base {
    set_result: Py<PyAny>,
    result: Py<PyAny>,
    exception: Py<PyAny>,
    invalid_state: Py<PyAny>,
}

/// The same methods of `Reply`, as Python defines them.
struct Careful {
    result: Py<PyAny>,
    exception: Py<PyAny>,
}

static BASE: PyOnceLock<Base> = PyOnceLock::new();
static CAREFUL: PyOnceLock<Careful> = PyOnceLock::new();

fn base(py: Python<'_>) -> PyResult<&Base> {
    BASE.get_or_try_init(py, || {
        let asyncio = py.import("asyncio")?;
        let future = asyncio.getattr("Future")?;
        Ok(Base {
            set_result: future.getattr("set_result")?.unbind(),
            result: future.getattr("result")?.unbind(),
            exception: future.getattr("exception")?.unbind(),
            invalid_state: asyncio.getattr("InvalidStateError")?.unbind(),
        })
    })
}

/// Give a future its result; one that was cancelled meanwhile stays as it is.
pub(crate) fn set_result(future: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    let base = base(py)?;
    // SAFETY: all are live objects, and the list ends in null.
    let done = unsafe {
        ffi::PyObject_CallFunctionObjArgs(
            base.set_result.as_ptr(),
            future.as_ptr(),
            value.as_ptr(),
            ptr::null_mut::<ffi::PyObject>(),
        )
    };
    // SAFETY: a new reference, or null with the error set.
    match unsafe { Bound::from_owned_ptr_or_err(py, done) } {
        Ok(_) => Ok(()),
        // Asking first would cost every reply what only a cancelled one needs.
        Err(error) if error.matches(py, &base.invalid_state)? => Ok(()),
        Err(error) => Err(error),
    }
}

/// Set a future that may have been cancelled meanwhile.
pub(crate) fn wake(py: Python<'_>, waiter: &Py<PyAny>) -> PyResult<()> {
    set_result(waiter.bind(py), py.None().bind(py))
}

/// `quicken(Reply)`: its `result()` and `exception()` cost what a plain future's do, once it is done.
#[pyfunction]
pub(crate) fn quicken(kind: &Bound<'_, PyType>) -> PyResult<()> {
    let py = kind.py();
    base(py)?;
    CAREFUL.get_or_try_init(py, || {
        PyResult::Ok(Careful {
            result: kind.getattr("result")?.unbind(),
            exception: kind.getattr("exception")?.unbind(),
        })
    })?;
    for method in [RESULT, EXCEPTION] {
        let name = method.ml_name;
        // SAFETY: a type, and a definition that lives as long as the process, as its front does; the name is one of ours.
        let (name, front) = unsafe {
            let front = ffi::PyDescr_NewMethod(kind.as_type_ptr(), Box::into_raw(Box::new(method)));
            (CStr::from_ptr(name), Bound::from_owned_ptr_or_err(py, front)?)
        };
        kind.setattr(name.to_string_lossy(), front)?;
    }
    Ok(())
}

const RESULT: ffi::PyMethodDef = front(
    c"result",
    result,
    c"result($self, /, timeout=None)\n--\n\nThe value, or the error raised; waits up to `timeout` seconds, off the loop's own thread.",
);
const EXCEPTION: ffi::PyMethodDef = front(
    c"exception",
    exception,
    c"exception($self, /, timeout=None)\n--\n\nThe error, or None; waits as `result` does.",
);

const fn front(
    name: &'static CStr,
    function: ffi::PyCFunctionFastWithKeywords,
    doc: &'static CStr,
) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: function,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr(),
    }
}

unsafe extern "C" fn result(
    reply: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls it, with the GIL held and as `METH_FASTCALL | METH_KEYWORDS` has it.
    unsafe {
        ask(
            reply,
            args,
            count,
            names,
            |base| &base.result,
            |careful| &careful.result,
        )
    }
}

unsafe extern "C" fn exception(
    reply: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as above.
    unsafe {
        ask(
            reply,
            args,
            count,
            names,
            |base| &base.exception,
            |careful| &careful.exception,
        )
    }
}

/// The future's own method where that is all that was asked for, and the reply is there; else Python's.
unsafe fn ask(
    reply: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    quick: impl Fn(&Base) -> &Py<PyAny>,
    careful: impl Fn(&Careful) -> &Py<PyAny>,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls us, so this thread is attached to it.
    let py = unsafe { Python::assume_attached() };
    if count == 0
        && names.is_null()
        && let Some(base) = BASE.get(py)
    {
        // SAFETY: live objects, and the list ends in null.
        let answer = unsafe {
            ffi::PyObject_CallFunctionObjArgs(quick(base).as_ptr(), reply, ptr::null_mut::<ffi::PyObject>())
        };
        // SAFETY: on null an error is set.
        if !answer.is_null() || unsafe { ffi::PyErr_ExceptionMatches(base.invalid_state.as_ptr()) } == 0 {
            return answer;
        }
        // It is not done, or its own error is of that kind: the careful way tells.
        // SAFETY: attached.
        unsafe { ffi::PyErr_Clear() };
    }
    let asked = || -> PyResult<Py<PyAny>> {
        let values = usize::try_from(count).unwrap_or(0);
        // SAFETY: `count` positional arguments, then one for each name.
        let at = |index: usize| unsafe { Bound::from_borrowed_ptr(py, *args.add(index)) };
        // SAFETY: the reply itself is one of its arguments.
        let mut positional = vec![unsafe { Bound::from_borrowed_ptr(py, reply) }];
        positional.extend((0..values).map(at));
        let keywords = PyDict::new(py);
        if !names.is_null() {
            // SAFETY: a tuple of names.
            let names = unsafe { Bound::from_borrowed_ptr(py, names) }.cast_into::<PyTuple>()?;
            for (index, name) in names.iter().enumerate() {
                keywords.set_item(name, at(values + index))?;
            }
        }
        let Some(methods) = CAREFUL.get(py) else {
            return Err(PyException::new_err("roost._roost.quicken was not called"));
        };
        careful(methods)
            .bind(py)
            .call(PyTuple::new(py, positional)?, Some(&keywords))
            .map(Bound::unbind)
    };
    match asked() {
        Ok(answer) => answer.into_ptr(),
        Err(error) => {
            error.restore(py);
            ptr::null_mut()
        }
    }
}
