//! Plain builtins as pickles, written and read without calling `pickle`: most arguments and results are a number, a
//! short text or None, and the calls would cost more than they do.
//!
//! What is written is a pickle of protocol 5 that any `pickle.loads` reads; what is read is any pickle made of the same
//! few opcodes. Everything else is left to Python. Opcodes: CPython, `Lib/pickletools.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyNone, PyString, PyTuple};

const HEAD: [u8; 2] = [0x80, 5];
const STOP: u8 = b'.';
/// A longer text or bytes gains nothing here.
const LENGTH_MAX: usize = 4096;
/// Values in one tuple.
const ITEMS_MAX: usize = 16;

/// Write a plain value, or a tuple of them. False, with `out` as it may be, when it is anything else.
pub(crate) fn encode(value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&HEAD);
    let done = match value.cast_exact::<PyTuple>() {
        Ok(tuple) => encode_tuple(tuple, out),
        Err(_) => encode_one(value, out),
    };
    out.push(STOP);
    done
}

fn encode_tuple(tuple: &Bound<'_, PyTuple>, out: &mut Vec<u8>) -> bool {
    let count = tuple.len();
    if count > ITEMS_MAX {
        return false;
    }
    if count > 3 {
        out.push(b'(');
    }
    if !tuple.iter_borrowed().all(|item| encode_one(&item, out)) {
        return false;
    }
    out.push(match count {
        0 => b')',
        1 => 0x85,
        2 => 0x86,
        3 => 0x87,
        _ => b't',
    });
    true
}

fn encode_one(value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> bool {
    if value.is_none() {
        out.push(b'N');
    } else if value.is_exact_instance_of::<PyInt>() {
        // A larger number is Python's to write.
        let Ok(number) = value.extract::<i64>() else {
            return false;
        };
        encode_int(number, out);
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        // A text with lone surrogates is no UTF-8.
        let Ok(text) = text.to_str() else { return false };
        return encode_sized(text.as_bytes(), 0x8c, b'X', out);
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        out.push(b'G');
        out.extend_from_slice(&number.value().to_be_bytes());
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        out.push(if truth.is_true() { 0x88 } else { 0x89 });
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        return encode_sized(bytes.as_bytes(), b'C', b'B', out);
    } else {
        return false;
    }
    true
}

fn encode_int(number: i64, out: &mut Vec<u8>) {
    if let Ok(byte) = u8::try_from(number) {
        out.extend_from_slice(&[b'K', byte]);
    } else if let Ok(small) = i32::try_from(number) {
        out.push(b'J');
        out.extend_from_slice(&small.to_le_bytes());
    } else {
        out.extend_from_slice(&[0x8a, 8]);
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn encode_sized(bytes: &[u8], short: u8, long: u8, out: &mut Vec<u8>) -> bool {
    if bytes.len() > LENGTH_MAX {
        return false;
    }
    if let Ok(length) = u8::try_from(bytes.len()) {
        out.extend_from_slice(&[short, length]);
    } else if let Ok(length) = u32::try_from(bytes.len()) {
        out.push(long);
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    true
}

/// Read a plain value, or a tuple of them; None when the pickle is, or may be, anything else.
pub(crate) fn decode<'py>(py: Python<'py>, pickle: &[u8]) -> Option<Bound<'py, PyAny>> {
    let mut rest = pickle.strip_prefix(&HEAD)?;
    if rest.len() > LENGTH_MAX + 64 {
        return None;
    }
    let mut items: [Option<Bound<'py, PyAny>>; ITEMS_MAX] = Default::default();
    let mut count = 0;
    let mut marked = false;
    loop {
        let (&opcode, after) = rest.split_first()?;
        rest = after;
        match opcode {
            STOP => {
                return (count == 1 && !marked && rest.is_empty())
                    .then(|| items[0].take())
                    .flatten();
            }
            // A frame's length and the memo are for larger pickles.
            0x95 => rest = rest.split_at_checked(8)?.1,
            0x94 => {}
            b'(' if count == 0 && !marked => marked = true,
            b')' | 0x85..=0x87 | b't' => {
                let taken = match opcode {
                    b')' => 0,
                    b't' => count,
                    _ => usize::from(opcode - 0x84),
                };
                // Only one tuple, of all there is: nothing nests here.
                if taken != count || (opcode == b't') != marked {
                    return None;
                }
                let tuple = PyTuple::new(
                    py,
                    items
                        .iter_mut()
                        .take(count)
                        .filter_map(Option::take)
                        .collect::<Vec<_>>(),
                )
                .ok()?;
                marked = false;
                count = 1;
                items[0] = Some(tuple.into_any());
            }
            _ => {
                let (value, after) = decode_one(py, opcode, rest)?;
                rest = after;
                *items.get_mut(count)? = Some(value);
                count += 1;
            }
        }
    }
}

fn decode_one<'py, 'a>(py: Python<'py>, opcode: u8, rest: &'a [u8]) -> Option<(Bound<'py, PyAny>, &'a [u8])> {
    let (value, rest) = match opcode {
        b'N' => (PyNone::get(py).to_owned().into_any(), rest),
        0x88 => (PyBool::new(py, true).to_owned().into_any(), rest),
        0x89 => (PyBool::new(py, false).to_owned().into_any(), rest),
        b'K' => {
            let (&byte, rest) = rest.split_first()?;
            (int(py, i64::from(byte)), rest)
        }
        b'M' => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (int(py, i64::from(u16::from_le_bytes(*bytes))), rest)
        }
        b'J' => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (int(py, i64::from(i32::from_le_bytes(*bytes))), rest)
        }
        0x8a => {
            let (&length, rest) = rest.split_first()?;
            let (bytes, rest) = rest.split_at_checked(usize::from(length))?;
            (int(py, long(bytes)?), rest)
        }
        b'G' => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (PyFloat::new(py, f64::from_be_bytes(*bytes)).into_any(), rest)
        }
        0x8c | b'X' => {
            let (bytes, rest) = sized(opcode == 0x8c, rest)?;
            (
                PyString::new(py, std::str::from_utf8(bytes).ok()?).into_any(),
                rest,
            )
        }
        b'C' | b'B' => {
            let (bytes, rest) = sized(opcode == b'C', rest)?;
            (PyBytes::new(py, bytes).into_any(), rest)
        }
        _ => return None,
    };
    Some((value, rest))
}

fn int(py: Python<'_>, number: i64) -> Bound<'_, PyAny> {
    let Ok(int) = number.into_pyobject(py);
    int.into_any()
}

/// A little-endian two's complement number of up to 8 bytes.
fn long(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > 8 {
        return None;
    }
    let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut whole = if negative { [0xff; 8] } else { [0; 8] };
    whole[..bytes.len()].copy_from_slice(bytes);
    Some(i64::from_le_bytes(whole))
}

fn sized(short: bool, rest: &[u8]) -> Option<(&[u8], &[u8])> {
    if short {
        let (&length, rest) = rest.split_first()?;
        return rest.split_at_checked(usize::from(length));
    }
    let (length, rest) = rest.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// `plain_dumps(value)`: the pickle, or None; for tests against `pickle` itself.
#[pyfunction]
pub(crate) fn plain_dumps<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    encode(value, &mut out).then(|| PyBytes::new(value.py(), &out))
}

/// `plain_loads(pickle)`: the value, or None where Python has to read it; for tests against `pickle` itself.
#[pyfunction]
pub(crate) fn plain_loads<'py>(pickle: &Bound<'py, PyBytes>) -> Option<Bound<'py, PyAny>> {
    decode(pickle.py(), pickle.as_bytes())
}
