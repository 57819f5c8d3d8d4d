# SPDX-License-Identifier: Apache-2.0
"""What is done with the data of strangers under limits of time and memory: bodies are parsed, chats made into prompts (chats.py), and
replies divided (replies.py). main.py runs it as a program, for process/worker_pool.py and for the command `rivulet`, with which this folder is
installed as share/rivulet/chat_worker (client/cli/chat/template_process.h). It imports no other module of rivulet, so that it starts in 0.1 s
and needs 20 MiB."""
