"""Who may write below a URL, what is newest there, and what may go."""
