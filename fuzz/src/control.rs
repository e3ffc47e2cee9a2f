use std::fmt::Debug;

use roost_core::carrier::Word;
use roost_core::control::{Envelope, ToAgent, ToClient, decode, decode_large, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Any packet is read or refused by both sides, and so is what hosts of a tree say to each other; what is read is written and read as the same.
pub fn control(data: &[u8]) {
    packet::<ToAgent>(data);
    packet::<ToClient>(data);
    packet::<Word>(data);
}

fn packet<T: Serialize + DeserializeOwned + Debug>(data: &[u8]) {
    if let Ok(Envelope::Inline(message)) = decode::<T>(data) {
        again(&message);
    }
    if let Ok(message) = decode_large::<T>(data) {
        again(&message);
    }
}

/// Compared as bytes: a time that is not a number is not equal to itself.
fn again<T: Serialize + DeserializeOwned + Debug>(message: &T) {
    let (packet, large) = encode(message).expect("what was read is within the limits");
    let second: T = match (decode(&packet).expect("what was written is right"), &large) {
        (Envelope::Inline(second), None) => second,
        (Envelope::Large { length }, Some(large)) => {
            assert_eq!(length, large.len() as u64);
            decode_large(large).expect("what was written is right")
        }
        (envelope, large) => panic!(
            "{envelope:?} and a file of {:?} bytes",
            large.as_ref().map(Vec::len)
        ),
    };
    assert_eq!(encode(&second).expect("the same again"), (packet, large));
}
