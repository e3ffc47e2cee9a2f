//! The owner's side of versions: questions for stamps, which wait while a buffer is in change.

use std::sync::atomic::{Ordering, fence};

use super::driver::Driver;
use super::link::Link;
use super::shared::lock;
use crate::limits::LINK_REQUESTS_MAX;
use crate::link::{Broken, Message, Stamp, Status};
use crate::stamp::Look;
use crate::stream::Cut;

impl Driver {
    pub(super) fn look(&mut self, id: u64, request: u64, regions: Vec<u64>) -> Result<(), Cut> {
        // Before the look: whoever ends an update after it sees that somebody waits.
        self.shared.lookers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let answer = self.stamps_of(id, request, &regions);
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        if let Some(answer) = answer {
            self.shared.lookers.fetch_sub(1, Ordering::Relaxed);
            link.say(&answer, Vec::new());
            self.touched.insert(id);
            return Ok(());
        }
        let serving = link.serving().ok_or(Broken("a question to who asks"))?;
        if serving.lookers.len() >= LINK_REQUESTS_MAX {
            self.shared.lookers.fetch_sub(1, Ordering::Relaxed);
            return Err(Broken("more questions than it may have").into());
        }
        serving.lookers.push((request, regions));
        Ok(())
    }

    /// None while one of them is in change.
    fn stamps_of(&mut self, id: u64, request: u64, regions: &[u64]) -> Option<Message> {
        let serving = self.links.get_mut(&id).and_then(Link::serving)?;
        let table = lock(&self.shared.regions);
        let mut stamps = Vec::with_capacity(regions.len());
        for (at, number) in regions.iter().enumerate() {
            let region = table
                .own(*number)
                .filter(|region| serving.leased.contains(number) && !region.is_dropping());
            let Some(region) = region else {
                let piece = u32::try_from(at).unwrap_or(u32::MAX);
                return Some(Message::Ended {
                    request,
                    status: Status::Gone,
                    piece,
                });
            };
            match region.slot.look() {
                Look::Still(stamp) => stamps.push(Stamp {
                    sequence: stamp.sequence,
                    version: stamp.version,
                }),
                Look::Updating => return None,
            }
        }
        Some(Message::Looked { request, stamps })
    }

    /// An update is over, or a region is: who waits for it may hear of it.
    pub(super) fn look_again(&mut self) {
        let ids: Vec<u64> = self.links.keys().copied().collect();
        for id in ids {
            let Some(serving) = self.links.get_mut(&id).and_then(Link::serving) else {
                continue;
            };
            for (request, regions) in std::mem::take(&mut serving.lookers) {
                let answer = self.stamps_of(id, request, &regions);
                let Some(link) = self.links.get_mut(&id) else {
                    continue;
                };
                match answer {
                    Some(answer) => {
                        self.shared.lookers.fetch_sub(1, Ordering::Relaxed);
                        link.say(&answer, Vec::new());
                        self.touched.insert(id);
                    }
                    None => link.serving().into_iter().for_each(|serving| {
                        serving.lookers.push((request, regions.clone()));
                    }),
                }
            }
        }
    }
}
