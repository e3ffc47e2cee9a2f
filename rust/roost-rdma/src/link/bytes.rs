//! Numbers and lists as bytes, and back from bytes that anybody may have written.

use super::message::Broken;
use crate::limits::TEXT_BYTES_MAX;

pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// With room left before what is written.
    pub(super) fn new(left_out: usize) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.resize(left_out, 0);
        Self(bytes)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("messages are far smaller"));
        self.raw(bytes);
    }

    /// Text that is too long is cut: it is for people.
    pub(super) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }

    pub(super) fn option<T>(&mut self, value: Option<&T>, put: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.u32(u32::try_from(items.len()).expect("lists are far shorter"));
        for item in items {
            put(self, item);
        }
    }
}

pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn end(&self) -> Result<(), Broken> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Broken("a message with something behind it"))
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Broken("a message that is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Broken> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool, Broken> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Broken("neither yes nor no")),
        }
    }

    pub(super) fn u16(&mut self) -> Result<u16, Broken> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Broken> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Broken> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The message's own bound holds for them.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Broken> {
        let count = self.u32()? as usize;
        Ok(self.take(count)?.to_vec())
    }

    pub(super) fn text(&mut self, bytes_max: usize) -> Result<String, Broken> {
        let bytes = self.bytes()?;
        if bytes.len() > bytes_max {
            return Err(Broken("a text that is too long"));
        }
        String::from_utf8(bytes).map_err(|_| Broken("a text that is none"))
    }

    pub(super) fn option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<T, Broken>,
    ) -> Result<Option<T>, Broken> {
        if self.flag()? {
            take(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Memory for it is taken as its items are found to be there.
    pub(super) fn list<T>(
        &mut self,
        items_max: usize,
        mut take: impl FnMut(&mut Self) -> Result<T, Broken>,
    ) -> Result<Vec<T>, Broken> {
        let count = self.u32()? as usize;
        if count > items_max {
            return Err(Broken("a list that is too long"));
        }
        (0..count).map(|_| take(self)).collect()
    }
}
