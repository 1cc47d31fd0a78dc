"""What an operator reads of a mirror, on one page.

look     looks at both clusters
held     what is held back, why, and what to do about it
page     the page
"""
