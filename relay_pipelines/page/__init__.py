"""What an operator reads of a mirror, on one page.

look     asks the clusters
advice   the states and reasons, where they are explained, and the next command
held     what is held back, and why
page     the page
"""
