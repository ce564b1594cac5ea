"""Where a view's state comes from, and how it gets to those who lack it.

restorer             from peers that hold it, or from storage
transfer             who lacks it, and how those who hold it send it
background_transfer  the weights and what is kept beside them, while those who send them compute
"""
