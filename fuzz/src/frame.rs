use roost_core::session::{Session, SessionConfig};
use roost_core::wire::{Content, Control, Frame, FrameHeader, Part, frame_length_hint};

/// Any bytes are read or refused; what is read can be written, and is then read as the same.
pub fn frame(data: &[u8]) {
    let hint = frame_length_hint(data);
    let Ok(Some(frame)) = Frame::decode(data) else {
        return;
    };
    let length = hint
        .expect("a frame that is read has a length")
        .expect("and is whole");
    assert!(length <= data.len());
    match frame.content {
        Content::Message(message, parts) => {
            assert_eq!(
                message.runs.iter().map(|run| u64::from(run.count)).sum::<u64>(),
                { message.runs.targets().count() as u64 }
            );
            assert_eq!(message.chain.iter().count(), message.chain.count());
            again(&frame, &message, &parts.iter().collect::<Vec<_>>());
        }
        Content::Reply(reply, parts) => again(&frame, &reply, &parts.iter().collect::<Vec<_>>()),
        Content::PortItem(item, parts) => again(&frame, &item, &parts.iter().collect::<Vec<_>>()),
        Content::Cancel(cancel) => again(&frame, &cancel, &[]),
        Content::Credit(credit) => again(&frame, &credit, &[]),
        Content::PortClose(close) => again(&frame, &close, &[]),
        Content::Goodbye(goodbye) => again(&frame, &goodbye, &[]),
        Content::Control(bytes) => again(&frame, &Control, &[Part::Inline(bytes)]),
        Content::Bulk(bulk, piece) => again(&frame, &bulk, &[Part::Inline(piece)]),
        Content::Ack => {}
    }
}

fn again<H: FrameHeader>(frame: &Frame<'_>, header: &H, parts: &[Part<'_>]) {
    let mut session = Session::new(SessionConfig::default());
    session
        .push(header, parts)
        .expect("what was read is within the limits");
    let bytes = session.unsent().collect::<Vec<_>>().concat();
    let second = Frame::decode(&bytes)
        .expect("what was written is right")
        .expect("and whole");
    assert!(
        same(&frame.content, &second.content),
        "{frame:?} became {second:?}"
    );
}

/// Equal but for header bytes of later versions, which are passed over.
fn same(first: &Content<'_>, second: &Content<'_>) -> bool {
    match (first, second) {
        (Content::Message(a, first), Content::Message(b, second)) => a == b && first.iter().eq(second.iter()),
        (Content::Reply(a, first), Content::Reply(b, second)) => a == b && first.iter().eq(second.iter()),
        (Content::PortItem(a, first), Content::PortItem(b, second)) => {
            a == b && first.iter().eq(second.iter())
        }
        _ => first == second,
    }
}
