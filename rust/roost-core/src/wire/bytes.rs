//! Little-endian numbers at fixed places of fixed-size arrays. The places are constants, so the checks vanish.

#[inline]
pub(super) fn array_at<const N: usize, const LENGTH: usize>(bytes: &[u8; N], at: usize) -> [u8; LENGTH] {
    let mut field = [0; LENGTH];
    field.copy_from_slice(&bytes[at..at + LENGTH]);
    field
}

#[inline]
pub(super) fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

#[inline]
pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

#[inline]
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[inline]
pub(super) fn put<const N: usize, const LENGTH: usize>(bytes: &mut [u8; N], at: usize, field: [u8; LENGTH]) {
    bytes[at..at + LENGTH].copy_from_slice(&field);
}
