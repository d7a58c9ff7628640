//! A stream that gives up on a peer that neither sends nor takes anything for a while.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

pub(super) struct IdleTimeout<S> {
    stream: S,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl<S> IdleTimeout<S> {
    pub(super) fn new(stream: S, timeout: Duration) -> IdleTimeout<S> {
        IdleTimeout { stream, timeout, deadline: Box::pin(tokio::time::sleep(timeout)) }
    }

    /// Passes on what came of an attempt; one that has to wait does so until the deadline.
    fn judge<T>(&mut self, attempt: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            let deadline = Instant::now() + self.timeout;
            self.deadline.as_mut().reset(deadline);
            return attempt;
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.judge(attempt, context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(attempt, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(attempt, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(attempt, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_silent_client_is_dropped_and_an_active_one_is_served() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let mut patient = IdleTimeout::new(stream, Duration::from_millis(50));
            let mut read = async || {
                let mut bytes = [0; 8];
                let mut buffer = ReadBuf::new(&mut bytes);
                std::future::poll_fn(|context| Pin::new(&mut patient).poll_read(context, &mut buffer))
                    .await?;
                Ok::<_, io::Error>(buffer.filled().to_vec())
            };
            peer.write_all(b"hello").unwrap();
            assert_eq!(read().await.unwrap(), b"hello");
            assert_eq!(read().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }
}
