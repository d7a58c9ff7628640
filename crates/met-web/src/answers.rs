//! Answers on their way out: a client that does not read holds a few of them, and delays no other client.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::in_turn::InTurn;
use crate::listener::in_background;
use crate::looks::Looks;

/// Answers to one client that are being made or sent.
const ANSWERS_PER_CLIENT: usize = 4;
/// Answers being made at once. Fewer than there are threads: batches are unpacked by the others.
const MADE_AT_ONCE: usize = 2;
/// Bytes of all answers that were made and not sent yet.
const UNSENT_BYTES_MAX: usize = 256 << 20;
/// Of these, what one client may have: it alone waits for what it does not read.
const CLIENT_BYTES_MAX: usize = 64 << 20;
/// How long a client waits for its turn before it is sent away.
const TURN_WITHIN: Duration = Duration::from_secs(10);
/// By when an answer is begun: what it waits for together. With the time that findings take, and with what is left for
/// other answers to be sent, it is less than a listener waits.
const BEGUN_WITHIN: Duration = Duration::from_secs(35);
/// By when there is room for an answer that was made.
const MADE_WITHIN: Duration = Duration::from_secs(58);
/// How long findings are looked for; a later `since` is asked for then.
const FINDINGS_WITHIN: Duration = Duration::from_secs(20);
/// Handed to the connection at a time: what it has is not counted here any more.
const CHUNK_BYTES: usize = 32 << 10;
/// Clients that are remembered; those with nothing under way are forgotten beyond it.
const CLIENTS: usize = 256;

pub struct Answers {
    clients: Mutex<HashMap<String, Client>>,
    making: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
    /// One at a time: what is written waits for one thread, and takes up none of those that make answers.
    writing: Arc<Semaphore>,
    turn_within: Duration,
    pub(crate) looks: Looks,
    /// One at a time: they read many jobs, and lists and pages are made by the same few threads.
    pub(crate) findings: InTurn,
    pub(crate) findings_within: Duration,
}

/// What one client may have.
#[derive(Clone)]
struct Client {
    turns: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
}

impl Client {
    fn new() -> Client {
        Client {
            turns: Arc::new(Semaphore::new(ANSWERS_PER_CLIENT)),
            unsent: Arc::new(Semaphore::new(CLIENT_BYTES_MAX)),
        }
    }
}

impl Default for Answers {
    fn default() -> Answers {
        Answers {
            clients: Mutex::default(),
            making: Arc::new(Semaphore::new(MADE_AT_ONCE)),
            unsent: Arc::new(Semaphore::new(UNSENT_BYTES_MAX)),
            writing: Arc::new(Semaphore::new(1)),
            turn_within: TURN_WITHIN,
            looks: Looks::default(),
            findings: InTurn::default(),
            findings_within: FINDINGS_WITHIN,
        }
    }
}

/// One of the answers that a client may have under way.
pub struct Turn {
    turn: OwnedSemaphorePermit,
    unsent: Arc<Semaphore>,
    /// When it was asked for.
    since: Instant,
}

impl Turn {
    pub(crate) fn begin_by(&self) -> Instant {
        self.since + BEGUN_WITHIN
    }
}

/// What an answer holds until its last byte was sent: a turn, and its bytes of the client's and of all.
type Held = [OwnedSemaphorePermit; 3];

impl Answers {
    /// With another limit to how long a client waits for its turn.
    pub fn within(turn_within: Duration) -> Answers {
        Answers { turn_within, ..Answers::default() }
    }

    /// Waits until this client may have another answer; `None` if it does not take those it has.
    pub async fn turn(&self, client: &str) -> Option<Turn> {
        let since = Instant::now();
        let Client { turns, unsent } = {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            if clients.len() >= CLIENTS {
                clients.retain(|_, client| client.turns.available_permits() < ANSWERS_PER_CLIENT);
            }
            clients.entry(client.to_owned()).or_insert_with(Client::new).clone()
        };
        let turn = self.soon(turns.acquire_owned(), since + BEGUN_WITHIN).await?;
        Some(Turn { turn, unsent, since })
    }

    /// Makes an answer beside the thread that listens. It counts until its last byte was sent. `None` if too many
    /// are unsent.
    pub async fn make(
        &self,
        turn: Turn,
        work: impl FnOnce() -> Response + Send + 'static,
    ) -> Option<Response> {
        let making = self.soon(Arc::clone(&self.making).acquire_owned(), turn.begin_by()).await?;
        // A client that gives up does not make room for another answer while its own is still made.
        let (response, making) = in_background(move || (work(), making)).await?;
        let (head, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.ok()?;
        // What follows waits for clients to read, and others make theirs meanwhile.
        drop(making);
        let Turn { turn, unsent: own, since } = turn;
        let latest = since + MADE_WITHIN;
        let counted = |most: usize| u32::try_from(bytes.len().min(most)).unwrap_or(u32::MAX);
        // Its own first: in the queue for all it would be in the way of others.
        let own = self.soon(own.acquire_many_owned(counted(CLIENT_BYTES_MAX)), latest).await?;
        let unsent = Arc::clone(&self.unsent).acquire_many_owned(counted(UNSENT_BYTES_MAX));
        let held = Some([turn, own, self.soon(unsent, latest).await?]);
        Some(Response::from_parts(head, Body::new(Sending { bytes, sent: 0, held })))
    }

    /// Does a part of an answer in one of the threads that make them, and returns the thread.
    pub(crate) async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let latest = Instant::now() + self.turn_within;
        let making = self.soon(Arc::clone(&self.making).acquire_owned(), latest).await?;
        in_background(move || (work(), making)).await.map(|(done, _)| done)
    }

    #[cfg(test)]
    pub(crate) fn with_findings_within(self, findings_within: Duration) -> Answers {
        Answers { findings_within, ..self }
    }

    #[cfg(test)]
    pub(crate) fn makes_nothing(&self) -> bool {
        self.making.available_permits() == MADE_AT_ONCE
    }

    /// Changes something, beside the thread that listens; its answer is small. `None` if another change takes too long.
    pub async fn write<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let writing = self.soon(Arc::clone(&self.writing).acquire_owned(), turn.begin_by()).await?;
        // A client that gives up does not make room for another one that waits for the same.
        in_background(move || {
            let done = work();
            drop((writing, turn));
            done
        })
        .await
    }

    async fn soon(
        &self,
        acquire: impl Future<Output = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>>,
        latest: Instant,
    ) -> Option<OwnedSemaphorePermit> {
        let until = latest.min(Instant::now() + self.turn_within);
        tokio::time::timeout_at(until, acquire).await.ok()?.ok()
    }
}

/// An answer that is sent in pieces, which are copies: nothing of the whole is left when the last was taken.
struct Sending {
    bytes: Bytes,
    sent: usize,
    held: Option<Held>,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let end = self.bytes.len().min(self.sent + CHUNK_BYTES);
        let chunk = Bytes::copy_from_slice(&self.bytes[self.sent..end]);
        self.sent = end;
        if self.sent == self.bytes.len() {
            (self.bytes, self.sent) = (Bytes::new(), 0);
            self.held = None;
        }
        Poll::Ready((!chunk.is_empty()).then_some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.bytes.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.bytes.len() - self.sent) as u64)
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use http_body_util::BodyExt;

    use super::*;
    use crate::in_turn::NoPlace;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    async fn answer(answers: &Answers, client: &str, bytes: usize) -> Option<Response> {
        let turn = answers.turn(client).await?;
        answers.make(turn, move || vec![7_u8; bytes].into_response()).await
    }

    #[test]
    fn an_answer_counts_until_it_was_taken() {
        block_on(async {
            let answers = Answers::default();
            let first = answer(&answers, "ada", 100_000).await.unwrap();
            assert_eq!(hyper::body::Body::size_hint(first.body()).exact(), Some(100_000));
            assert_eq!(answers.unsent.available_permits(), UNSENT_BYTES_MAX - 100_000);
            assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), vec![7; 100_000]);
            assert_eq!(answers.unsent.available_permits(), UNSENT_BYTES_MAX);
            for bytes in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1] {
                let body = answer(&answers, "ada", bytes).await.unwrap().into_body();
                assert_eq!(body.collect().await.unwrap().to_bytes().len(), bytes);
            }
            assert_eq!(answers.unsent.available_permits(), UNSENT_BYTES_MAX);
        });
    }

    #[test]
    fn what_a_client_that_goes_away_in_mid_answer_held_is_given_back() {
        block_on(async {
            let answers = Arc::new(Answers::default());
            // Some of it was read.
            let mut body = answer(&answers, "eve", 10 * CHUNK_BYTES).await.unwrap().into_body();
            assert!(body.frame().await.is_some());
            assert!(answers.unsent.available_permits() < UNSENT_BYTES_MAX);
            drop(body);
            // It is being made.
            let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
            let making = Arc::clone(&answers);
            let asking = tokio::spawn(async move {
                let turn = making.turn("eve").await.unwrap();
                let work =
                    move || may_go_on.recv().map_or_else(|_| ().into_response(), IntoResponse::into_response);
                making.make(turn, work).await.is_some()
            });
            while answers.makes_nothing() {
                tokio::task::yield_now().await;
            }
            asking.abort();
            assert!(asking.await.unwrap_err().is_cancelled());
            assert!(!answers.makes_nothing(), "its thread is still at work");
            drop(go_on);
            while !answers.makes_nothing() {
                tokio::task::yield_now().await;
            }
            assert_eq!(answers.unsent.available_permits(), UNSENT_BYTES_MAX);
            let clients = answers.clients.lock().unwrap();
            assert_eq!(clients["eve"].turns.available_permits(), ANSWERS_PER_CLIENT);
            assert_eq!(clients["eve"].unsent.available_permits(), CLIENT_BYTES_MAX);
        });
    }

    #[test]
    fn a_client_that_takes_no_answers_gets_no_more_and_others_do() {
        block_on(async {
            let answers = Answers::within(Duration::from_millis(50));
            let mut unread = Vec::new();
            for _ in 0..ANSWERS_PER_CLIENT {
                unread.push(answer(&answers, "eve", 1 << 20).await.unwrap());
            }
            assert!(answers.turn("eve").await.is_none());
            assert!(answer(&answers, "ada", 1 << 20).await.is_some());
            drop(unread.pop());
            assert!(answers.turn("eve").await.is_some());
        });
    }

    #[test]
    fn what_an_answer_waits_for_has_one_deadline() {
        assert!(BEGUN_WITHIN + FINDINGS_WITHIN < MADE_WITHIN);
        assert!(MADE_WITHIN < crate::listener::Options::new(Vec::new()).answer_within);
        block_on(async {
            let answers = Answers::within(Duration::from_secs(600));
            let _at_work = Arc::clone(&answers.making).acquire_many_owned(MADE_AT_ONCE as u32).await.unwrap();
            let _found = answers.findings.place("eve", Instant::now()).await.unwrap();
            let mut turn = answers.turn("ada").await.unwrap();
            turn.since -= BEGUN_WITHIN;
            assert_eq!(answers.findings.place("ada", turn.begin_by()).await.unwrap_err(), NoPlace::Busy);
            assert!(answers.make(turn, || ().into_response()).await.is_none());
        });
    }

    #[test]
    fn a_client_that_leaves_large_answers_unread_delays_no_other() {
        block_on(async {
            let answers = Arc::new(Answers::default());
            let half = CLIENT_BYTES_MAX / 2;
            let unread = [answer(&answers, "eve", half).await, answer(&answers, "eve", half).await];
            assert!(unread.iter().all(Option::is_some));
            // As many as are made at once: they would keep the others from being made.
            let waiting: Vec<_> = (0..MADE_AT_ONCE)
                .map(|_| {
                    let answers = Arc::clone(&answers);
                    tokio::spawn(async move { answer(&answers, "eve", half).await.is_some() })
                })
                .collect();
            let is_waiting = || {
                answers.clients.lock().unwrap()["eve"].turns.available_permits() == 0
                    && answers.making.available_permits() == MADE_AT_ONCE
            };
            while !is_waiting() && !waiting.iter().any(|waiting| waiting.is_finished()) {
                tokio::task::yield_now().await;
            }
            assert!(answer(&answers, "ada", 1 << 20).await.is_some());
            assert_eq!(answers.unsent.available_permits(), UNSENT_BYTES_MAX - 2 * half);
            drop(unread);
            for waiting in waiting {
                assert!(waiting.await.unwrap(), "there is room again");
            }
        });
    }
}
