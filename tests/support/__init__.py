"""What several tests share: tiny models, cases, samples, programs to kill."""
